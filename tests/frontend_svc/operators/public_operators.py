"""Operators that graphs of public models contain, in inference and in training.

Counted in about a thousand traced graphs; operators that changed an argument are functionalized.
"""

from __future__ import annotations

_NAMES = """
    aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool2d_backward.default
    aten._assert_scalar.default aten._fft_c2c.default aten._local_scalar_dense.default
    aten._native_multi_head_attention.default
    aten._scaled_dot_product_flash_attention_for_cpu.default
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default aten._unsafe_index.Tensor
    aten._unsafe_masked_index.default aten._unsafe_masked_index_put_accumulate.default
    aten._upsample_bicubic2d_aa.default aten._weight_norm_interface_backward.default
    aten.abs.default aten.add.Scalar aten.add.Tensor aten.addcmul.default aten.addmm.default
    aten.alias.default aten.amax.default aten.any.dim aten.argmax.default
    aten.as_strided.default aten.avg_pool2d.default aten.avg_pool2d_backward.default
    aten.baddbmm.default aten.bitwise_and.Tensor aten.bitwise_not.default aten.bitwise_or.Tensor
    aten.bmm.default aten.cat.default aten.ceil.default aten.clamp.default
    aten.clamp_max.default aten.clamp_min.default aten.clone.default
    aten.constant_pad_nd.default aten.convolution.default aten.convolution_backward.default
    aten.copy.default aten.cos.default aten.cumsum.default aten.div.Scalar aten.div.Tensor
    aten.div.Tensor_mode aten.embedding.default aten.eq.Scalar aten.erf.default aten.exp.default
    aten.expand.default aten.expm1.default aten.floor.default aten.floor_divide.default
    aten.fmod.Scalar aten.full.default aten.gather.default aten.ge.Scalar aten.glu.default
    aten.gt.Scalar aten.gt.Tensor aten.index.Tensor aten.index_put.default aten.le.Scalar
    aten.le.Tensor aten.lift_fresh_copy.default aten.log.default aten.log1p.default
    aten.logical_and.default aten.logical_not.default aten.lt.Scalar aten.lt.Tensor
    aten.max.default aten.max_pool2d_with_indices.default aten.maximum.default aten.mean.dim
    aten.minimum.default aten.mm.default aten.mul.Scalar aten.mul.Tensor aten.ne.Scalar
    aten.ne.Tensor aten.neg.default aten.new_empty_strided.default aten.permute.default
    aten.pow.Tensor_Scalar aten.pow.Tensor_Tensor aten.prod.default
    aten.rand.default aten.reciprocal.default aten.relu.default aten.remainder.Scalar
    aten.repeat.default aten.rsqrt.default aten.scalar_tensor.default aten.scatter_add.default
    aten.select.int aten.select_scatter.default aten.sigmoid.default aten.sign.default
    aten.sin.default aten.slice.Tensor aten.slice_scatter.default aten.sort.default
    aten.split.Tensor aten.split_with_sizes.default aten.sqrt.default aten.squeeze.dim
    aten.squeeze.dims aten.sub.Tensor aten.sum.default aten.sum.dim_IntList aten.sym_size.int
    aten.tanh.default aten.topk.default aten.unbind.int aten.unfold.default
    aten.unsqueeze.default aten.upsample_bicubic2d.default
    aten.upsample_bicubic2d_backward.default aten.upsample_bilinear2d.default
    aten.upsample_bilinear2d_backward.default aten.upsample_nearest2d_backward.default
    aten.var.correction aten.var_mean.correction aten.view.default aten.view_as_real.default
    aten.where.self kernelfarm.attention_backward.default kernelfarm.attention_saving.default
    prims._low_memory_max_pool_offsets_to_indices.default
    prims._low_memory_max_pool_with_offsets.default prims.convert_element_type.default
    prims.fma.default prims.iota.default
"""

IN_PUBLIC_GRAPHS = tuple(_NAMES.split())
