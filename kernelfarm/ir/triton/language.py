"""The closed set of names that the source of a user's Triton kernel may use.

A name that is missing here is refused. A test compares the sets with the installed Triton: each of
its public names is allowed or is in `EXCLUDED`, with the reason.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ELEMENT_TYPES = _names(
    "int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"
    " float8e4nv float8e4b8 float8e4b15 float8e5 float8e5b16 void pi32_t"
)
"""Element types: attributes of `tl`."""

FUNCTIONS = _names(
    "PropagateNan TRITON_MAX_TENSOR_NUMEL abs add arange argmax argmin associative_scan assume"
    " atomic_add atomic_and atomic_cas atomic_load atomic_max atomic_min atomic_or atomic_poll"
    " atomic_store atomic_xchg atomic_xor bitonic_merge broadcast broadcast_to cast cat cdiv"
    " ceil clamp condition constexpr cos cumprod cumsum debug_barrier device_assert div_rn dot"
    " dot_scaled erf exp exp2 expand_dims expect_zero fdiv flip floor fma full gather histogram"
    " interleave join load load_tensor_descriptor log log2 make_block_ptr make_tensor_descriptor"
    " map_elementwise max max_constancy max_contiguous maximum min minimum mul multiple_of"
    " num_programs pair_uniform_to_normal permute philox philox_impl pointer_type program_id"
    " rand rand4x randint randint4x randn randn4x range ravel reduce reduce_or reshape rsqrt"
    " sigmoid sin softmax sort split sqrt sqrt_rn squeeze static_assert static_range store"
    " store_tensor_descriptor sub sum swizzle2d topk trans uint_to_uniform_float umulhi"
    " unsqueeze view where xor_sum zeros zeros_like"
)
"""Functions and constants: attributes of `tl`."""

EXCLUDED = {
    "block_type": "a class of the compiler",
    "const": "an annotation, which has no part in a compilation ahead of time",
    "constexpr_type": "a class of the compiler",
    "device_print": "the launch of a program has no place for its output",
    "dtype": "a class of the compiler",
    "extra": "only `libdevice` of it is allowed, by that name",
    "inline_asm_elementwise": "assembler text can read files of the machine that assembles it",
    "math": "only the functions in `MATH` are allowed",
    "slice": "a class of the compiler",
    "static_print": "the farm shows no output of a compilation",
    "target_info": "a kernel is compiled for the target that the request names",
    "tensor": "a class of the compiler",
    "tensor_descriptor": "a class of the compiler",
    "to_tensor": "a function of the compiler",
    "tuple": "a class of the compiler",
}
"""Public names of `tl` that are refused, each with the reason."""

MATH = _names(
    "abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi"
)
"""Attributes of `tl.math`."""

LIBDEVICE = _names(
    "abs acos acosh asin asinh atan atan2 atanh cbrt ceil clz copysign cos cosh cospi div_rd"
    " div_rn div_ru div_rz erf erfc erfcinv erfcx erfinv exp exp10 exp2 expm1 fast_cosf"
    " fast_dividef fast_exp10f fast_expf fast_log10f fast_log2f fast_logf fast_powf fast_sinf"
    " fast_tanf fast_tanhf fdim ffs finitef float_as_int float_as_uint floor fma fmod hypot"
    " ilogb int_as_float isfinited isinf isnan j0 j1 ldexp lgamma llrint llround log log10 log1p"
    " log2 logb mulhi nearbyint nextafter normcdf normcdfinv popc pow rcbrt remainder rint round"
    " rsqrt rsqrt_rn saturatef scalbn signbit sin sinh sinpi sqrt sqrt_rd sqrt_rn sqrt_ru"
    " sqrt_rz tan tanh tgamma trunc uint_as_float y0 y1"
)
"""Attributes of `libdevice`, the vendor's mathematical functions."""

TRITON = frozenset({"cdiv", "next_power_of_2"})
"""Attributes of `triton` itself."""

BUILTINS = frozenset({"float", "int", "len", "max", "min", "range"})
"""Functions of Python that Triton gives a meaning; they can only be called."""

MEMBERS = _names(
    "T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_load"
    " atomic_max atomic_min atomic_or atomic_poll atomic_store atomic_xchg atomic_xor broadcast_to"
    " cast cdiv ceil cos cumprod cumsum erf exp exp2 expand_dims flip floor gather histogram item"
    " log log2 logical_and logical_or max min permute ravel reduce reduce_or reshape rsqrt sigmoid"
    " sin softmax sort split sqrt sqrt_rn store sum to trans view xor_sum"  # of a tensor
    " load scatter block_shape"  # of a descriptor
    " dtype shape type numel element_ty scalar primitive_bitwidth itemsize value"
    " is_bf16 is_block is_bool is_floating is_fp16 is_fp32 is_fp64 is_fp8 is_int is_int1 is_int16"
    " is_int32 is_int64 is_int8 is_int_signed is_int_unsigned is_ptr is_standard_floating"
    " is_uint16 is_uint32 is_uint64 is_uint8"
)
"""Attributes of values: of tensors, descriptors, element types and constants."""

TL, TRITON_MODULE, LIBDEVICE_MODULE = "tl", "triton", "libdevice"
MODULES = frozenset({TL, TRITON_MODULE, LIBDEVICE_MODULE})
"""Names of modules, which have no other meaning in a source."""


def attributes_of(module: tuple[str, ...]) -> frozenset[str] | None:
    """The attributes of a module that a source may use, None if it may not use the module."""
    return {
        (TL,): FUNCTIONS | ELEMENT_TYPES | {"math"},
        (TL, "math"): MATH,
        (TRITON_MODULE,): TRITON,
        (LIBDEVICE_MODULE,): LIBDEVICE,
    }.get(module)


def why_excluded(module: tuple[str, ...], name: str) -> str:
    """Why an attribute of a module is refused; empty if Triton's language does not have it."""
    return EXCLUDED.get(name, "") if module == (TL,) else ""
