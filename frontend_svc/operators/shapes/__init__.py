"""Creation, views, slicing, joining and rearranging of tensors."""
