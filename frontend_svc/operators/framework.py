"""Operators that are knowingly left to the framework, by the reason."""

from __future__ import annotations

from frontend_svc.operators.registry import ExternOperator, send_to_framework

_BY_REASON = {
    "interpolation: its windows depend on the sizes": (
        "_upsample_bicubic2d_aa.default _upsample_bilinear2d_aa.default"
    ),
    "view: there is no prim for this form yet": (
        "view.dtype view_as_complex.default view_as_real.default"
    ),
    "order: there is no prim for sorting and searching yet": (
        "kthvalue.default median.default median.dim"
        " mode.default sort.default sort.stable topk.default"
    ),
    "random: only the framework's generator gives its numbers": (
        "bernoulli.default bernoulli.p multinomial.default normal_functional.default rand.default"
        " rand_like.default randint.default randint.low randn.default randn_like.default"
        " randperm.default"
    ),
    "special function: there is no prim for it yet": (
        "digamma.default erfinv.default igamma.default lgamma.default polygamma.default"
    ),
    "transform: the framework's library computes it": (
        "_fft_c2c.default _fft_c2r.default _fft_r2c.default linalg_inv_ex.default linalg_qr.default"
    ),
    "training: it updates running statistics in place": "_native_batch_norm_legit.default",
    "data: the result's size depends on it": (
        "masked_select.default nonzero.default unique_dim.default _unique2.default"
    ),
}

for _reason, _names in _BY_REASON.items():
    send_to_framework(*(ExternOperator(f"aten.{_name}", _reason) for _name in _names.split()))
send_to_framework(
    *(
        ExternOperator(
            name, "memory: the result depends on how the operand lies there", reads_memory=True
        )
        for name in ("aten.as_strided.default", "aten.as_strided_scatter.default")
    )
)
