"""The groups of operators that the client's framework runs, each with its reason.

Every functional operator of PyTorch's `aten` decomposes or is in exactly one group; a test compares
that with PyTorch's own registry. A pattern names an operator (`sort`: all overloads, `mm.dtype`:
one overload), with `*` for any text. If a pattern covers an operator that decomposes, it means the
forms that the decomposition does not cover.
"""

from __future__ import annotations

from frontend_svc.operators.core.registry import ExternGroup, send_to_framework


def _aten(patterns: str) -> tuple[str, ...]:
    """Full patterns from names without `aten.`; a name without an overload means all of them."""
    return tuple(f"aten.{p}" if "." in p else f"aten.{p}.*" for p in patterns.split())


send_to_framework(
    # Contractions and attention: one launch of a library computes them at the peak of the machine.
    ExternGroup(
        "contraction",
        "the framework's library is the fastest implementation",
        _aten(
            "mm bmm mv matmul linear addmm addmv addbmm baddbmm _int_mm _grouped_mm _scaled_mm*"
            " _scaled_grouped_mm* _trilinear _addmm_activation linear_backward matmul_backward"
            " affine_grid_generator"
        ),
        is_contraction=True,
    ),
    ExternGroup(
        "convolution",
        "the framework's library is the fastest implementation",
        _aten(
            "convolution convolution_overrideable convolution_backward*"
            " _convolution conv_depthwise3d _conv_depthwise2d conv_tbc slow_conv* _slow_conv2d_*"
            " _nnpack_spatial_convolution"
        ),
        is_contraction=True,
    ),
    ExternGroup(
        "packed weight",
        "the framework's library has packed the weight of a frozen model",
        ("mkldnn._convolution_pointwise.*", "mkldnn._linear_pointwise.default"),
        is_contraction=True,
    ),
    ExternGroup(
        "convolution by Winograd's algorithm",
        "the client wrote it for kernels, which compute all of them whose shapes are right",
        ("kernelfarm.winograd_convolution.default",),
        is_contraction=True,
    ),
    ExternGroup(
        "attention",
        "the framework's fused kernel computes it, unless kernels are faster on the chip",
        _aten(
            "scaled_dot_product_attention _scaled_dot_product_* _flash_attention_*"
            " _efficient_attention_* _cudnn_attention_* _triton_multi_head_attention"
            " _triton_scaled_dot_attention _native_multi_head_attention"
            " _transformer_encoder_layer_fwd _transform_bias_rescale_qkv _masked_softmax*"
        ),
        is_contraction=True,
    ),
    ExternGroup(
        "attention for training",
        "the framework's fused kernels compute it, the forward pass unless kernels are faster",
        ("kernelfarm.attention_saving.default", "kernelfarm.attention_backward.default"),
        is_contraction=True,
    ),
    ExternGroup(
        "recurrent cell",
        "the framework's fused kernel computes it; cells made of other operators decompose",
        _aten("_thnn_fused_* _lstm_mps lstm_mps_backward _pack_padded_sequence"),
    ),
    # Libraries of one vendor: the framework chose them for its own device and layout.
    ExternGroup(
        "cuDNN",
        "a call of that library, chosen for the client's device",
        _aten("cudnn_* _cudnn_rnn* _cudnn_init_dropout_state _cudnn_ctc_loss"),
    ),
    ExternGroup(
        "MIOpen", "a call of that library, chosen for the client's device", _aten("miopen_*")
    ),
    ExternGroup(
        "oneDNN",
        "a call of that library, in its own memory layout",
        _aten("mkldnn_* _mkldnn_* to_mkldnn"),
    ),
    ExternGroup(
        "Metal",
        "a call of that library, chosen for the client's device",
        _aten("_mps_convolution* mps_convolution* max_pool2d_backward"),
    ),
    # Linear algebra and transforms: long algorithms, for which the framework has libraries.
    ExternGroup("Fourier transform", "the framework's library computes it", _aten("_fft_*")),
    ExternGroup(
        "decomposition of matrices",
        "the framework's library computes it",
        _aten(
            "linalg_qr linalg_cholesky_ex linalg_lu* linalg_ldl_factor_ex"
            " linalg_householder_product lu_unpack _linalg_svd cholesky geqrf ormqr"
        ),
    ),
    ExternGroup(
        "eigenvalues", "the framework's library computes it", _aten("_linalg_eig* linalg_eig")
    ),
    ExternGroup(
        "linear system",
        "the framework's library solves it",
        _aten(
            "_linalg_solve_ex linalg_solve_triangular linalg_ldl_solve linalg_lstsq linalg_inv_ex"
            " linalg_pinv cholesky_solve cholesky_inverse _cholesky_solve_helper triangular_solve"
            " _linalg_det _linalg_slogdet"
        ),
    ),
    ExternGroup(
        "function of a matrix",
        "it is a series of contractions",
        _aten("linalg_matrix_exp _compute_linear_combination"),
    ),
    ExternGroup(
        "size from data",
        "the result's size depends on the elements of the operands",
        _aten(
            "nonzero masked_select _unique _unique2 unique_dim unique_dim_consecutive"
            " unique_consecutive bincount repeat_interleave.Tensor"
        ),
    ),
    ExternGroup(
        "segment reduction",
        "the bounds of segments depend on data",
        _aten("segment_reduce _segment_reduce_backward"),
    ),
    ExternGroup("hash", "kernels do not compute in its type, u64", _aten("hash_tensor")),
    # Random numbers.
    ExternGroup(
        "random numbers",
        "by the option fallback_random, or a form that has no decomposition",
        _aten(
            "rand rand_like randn randn_like randint randint_like randperm random uniform"
            " normal normal_functional log_normal cauchy exponential geometric bernoulli binomial"
            " poisson multinomial rrelu_with_noise_functional _fused_dropout _standard_gamma"
            " _sample_dirichlet _philox_*"
        ),
        has_effects=True,
    ),
    ExternGroup(
        "random numbers drawn again",
        "a checkpoint restores the framework's generator, so both passes draw the same numbers",
        ("run_and_save_rng_state", "run_with_rng_state"),
        has_effects=True,
    ),
    ExternGroup(
        "gradients of random numbers",
        "there is no formula for them in Prims yet",
        _aten("_standard_gamma_grad _dirichlet_grad"),
    ),
    # Functions of mathematics.
    ExternGroup(
        "special function",
        "the length of its series depends on data",
        _aten("igamma igammac polygamma"),
    ),
    ExternGroup(
        "orthogonal polynomial",
        "its degree depends on data",
        _aten("special_hermite_* special_laguerre_* special_legendre_*"),
    ),
    # Element types and layouts that kernels do not have.
    ExternGroup(
        "complex number",
        "kernels have no complex type",
        _aten(
            "complex polar view_as_complex view_as_real view_as_complex_copy view_as_real_copy"
            " _conj _conj_copy _conj_physical _neg_view _neg_view_copy"
        ),
    ),
    ExternGroup(
        "bits as another type",
        "there is no prim for this view yet",
        _aten("view.dtype view_copy.dtype"),
    ),
    ExternGroup(
        "memory",
        "the result depends on the memory layout of the operand",
        _aten("as_strided as_strided_copy as_strided_scatter"),
        reads_memory=True,
    ),
    ExternGroup(
        "storage",
        "it allocates or exchanges the memory of a tensor",
        _aten(
            "set resize resize_as _resize_output _pin_memory _copy_from* from_file _lazy_clone"
            " _efficientzerotensor _new_zeros_with_same_feature_meta slice_inverse"
        ),
    ),
    ExternGroup(
        "sparse tensor",
        "kernels compute on dense tensors",
        _aten(
            "_sparse_* sparse_* *_sparse _to_sparse* _to_dense copy_sparse_to_sparse _coalesce*"
            " native_norm _convert_indices_* _cslt_* hspmm _spdiags _spsolve indices values"
            " _indices _values crow_indices col_indices ccol_indices row_indices *indices_copy"
            " values_copy _values_copy"
        ),
    ),
    ExternGroup(
        "nested tensor",
        "kernels compute on tensors whose rows have equal lengths",
        _aten("_nested_* _jagged_* _padded_dense_to_jagged_forward to_padded_tensor"),
    ),
    ExternGroup(
        "quantization",
        "its types and packed weights are the framework's own",
        _aten(
            "quantize_* quantized_* dequantize q_per_channel_* int_repr _fake_quantize_*"
            " fake_quantize_* _fused_moving_avg_obs_fq_helper_functional _make_per_*"
            " _empty_*affine_quantized empty_quantized"
            " _weight_int*pack_mm* _convert_weight_to_int4pack* _dyn_quant_* _mixed_dtypes_linear"
        ),
    ),
    # Training.
    ExternGroup(
        "running statistics",
        "it updates them in place",
        _aten("_native_batch_norm_legit.default"),
    ),
    ExternGroup(
        "statistics over devices",
        "the framework's processes exchange them",
        _aten(
            "batch_norm_stats batch_norm_elemt batch_norm_backward_elemt batch_norm_backward_reduce"
            " batch_norm_gather_stats* batch_norm_update_stats"
        ),
    ),
    ExternGroup(
        "optimizer",
        "one step of the framework updates all weights",
        _aten("_fused_adam* _fused_sgd _fused_adagrad _amp_*"),
    ),
    ExternGroup(
        "list of tensors",
        "one step of the framework computes all of them",
        _aten("_foreach_*"),
    ),
    ExternGroup("CTC loss", "its loops depend on lengths that are data", _aten("_ctc_loss*")),
    ExternGroup(
        "bags of embeddings",
        "the bounds of bags depend on data",
        _aten("_embedding_bag* embedding_renorm"),
    ),
    ExternGroup(
        "margin loss",
        "there is no decomposition yet",
        _aten("multi_margin_loss* multilabel_margin_loss_*"),
    ),
    ExternGroup(
        "gradients of sampling",
        "there is no decomposition yet",
        _aten("grid_sampler_2d_backward grid_sampler_3d_backward _grid_sampler_2d_cpu_fallback*"),
    ),
    ExternGroup(
        "gradients of distances",
        "there is no decomposition yet",
        _aten("_cdist_backward _pdist_backward"),
    ),
    ExternGroup(
        "pooling at random positions",
        "there is no decomposition yet",
        _aten("fractional_max_pool*"),
    ),
    ExternGroup("interpolation", "its windows depend on symbolic sizes", _aten("_upsample_*_aa*")),
    # Operators that do not compute on elements.
    ExternGroup(
        "check",
        "the framework raises its own error",
        _aten(
            "_functional_assert_* _functional_sym_constrain_* _assert_* _make_dep_token"
            " sym_* _local_scalar_dense"
        ),
        has_effects=True,
    ),
    ExternGroup(
        "forward-mode gradients",
        "captured graphs contain none; the framework runs explicit calls",
        _aten("_fw_primal* _make_dual* glu_jvp glu_backward_jvp"),
    ),
    ExternGroup(
        "operators of PyTorch's own tests", "only these tests call them", _aten("_test_* _foobar")
    ),
    ExternGroup(
        "collective",
        "processes of the framework exchange data",
        ("_c10d_functional.*", "_c10d_functional_autograd.*", "c10d.*", "symm_mem.*"),
        has_effects=True,
    ),
    ExternGroup(
        "steps of Inductor",
        "they exist between Inductor's own passes only",
        ("prims._low_memory_*", "inductor_prims.*", "inductor.*"),
    ),
    ExternGroup(
        "higher-order operator",
        "it preserves the order of effects",
        ("with_effects",),
        has_effects=True,
    ),
)
