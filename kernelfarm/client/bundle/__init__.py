"""Cache bundles: programs, their blobs and traces as an OCI image layout; needs no torch.

layout      the files of a bundle: written deterministically, read within limits
export      reads what a certificate names from a farm
to_farm     imports a bundle into another farm
to_disk     imports a bundle into the disk tier of this machine's clients
"""
