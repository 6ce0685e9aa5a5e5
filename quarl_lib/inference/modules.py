"""Turn torch modules into a PolicySpec and Weights; the only file of the specs that knows torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quarl_lib.inference.spec import Conv, Head, Layer, LayerWeights, PolicySpec, Weights

if TYPE_CHECKING:
    from torch import Tensor, nn


def spec_from_module(
    module: nn.Module,
    head: Head | None = None,
    *,
    image_shape: tuple[int, int, int] | None = None,
    observation_mean: np.ndarray | None = None,
    observation_inverse_std: np.ndarray | None = None,
    observation_clip: float = float("inf"),
    log_std: np.ndarray | None = None,
) -> tuple[PolicySpec, Weights]:
    """Return spec and weights of a chain of Conv2d, Linear, LayerNorm and activations, nested Sequentials included.

    A Tanh at the end is the head's own where `head` is a tanh head. The arrays are views of the module's tensors
    where those are contiguous float32 on the CPU. Raise ValueError that names the submodule that does not fit.
    """
    head = head or Head()
    convs: list[dict] = []
    layers: list[dict] = []
    arrays: list[dict] = []
    for name, part in _chain(module):
        _append(name, part, convs, layers, arrays)
    if not layers:
        raise ValueError(f"{type(module).__name__} has no Linear layer: give a chain that ends in one")
    if head.kind == "tanh" and layers[-1]["activation"] == "tanh":
        layers[-1]["activation"] = "identity"
    spec = PolicySpec(
        layers=tuple(Layer(**layer) for layer in layers),
        head=head,
        normalize_observation=observation_mean is not None,
        observation_clip=observation_clip,
        conv=tuple(Conv(**conv) for conv in convs),
        image_shape=image_shape,
    )
    all_arrays = tuple(LayerWeights(**a) for a in arrays)
    weights = Weights(
        layers=all_arrays[len(convs) :],
        conv=all_arrays[: len(convs)],
        observation_mean=None if observation_mean is None else np.array(observation_mean, np.float64),
        observation_inverse_std=None if observation_mean is None else np.array(observation_inverse_std, np.float64),
        log_std=None if log_std is None else _float32(np.asarray(log_std)),
    )
    weights.check(spec)
    return spec, weights


def _chain(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """List the leaves of nested Sequentials in order."""
    from torch import nn

    if not isinstance(module, nn.Sequential):
        return [(prefix or type(module).__name__, module)]
    return [leaf for name, child in module.named_children() for leaf in _chain(child, f"{prefix}.{name}".strip("."))]


def _append(name: str, part: nn.Module, convs: list[dict], layers: list[dict], arrays: list[dict]) -> None:
    from torch import nn

    activations = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.ELU: "elu", nn.SiLU: "silu"}
    if isinstance(part, nn.Linear):
        layers.append({"in_features": part.in_features, "out_features": part.out_features, "activation": "identity"})
        arrays.append(_linear_arrays(part, part.out_features))
    elif isinstance(part, nn.Conv2d) and not layers:
        square = part.kernel_size[0] == part.kernel_size[1] and part.stride[0] == part.stride[1]
        if not square or part.padding not in (0, (0, 0), "valid") or part.dilation != (1, 1) or part.groups != 1:
            raise ValueError(f"{name} is {part}: only square kernels without padding, dilation or groups are known")
        convs.append(
            {
                "in_channels": part.in_channels,
                "out_channels": part.out_channels,
                "kernel": part.kernel_size[0],
                "stride": part.stride[0],
                "activation": "identity",
            }
        )
        arrays.append(_linear_arrays(part, part.out_channels))
    elif type(part) in activations and (layers or convs):
        last = layers[-1] if layers else convs[-1]
        if last["activation"] != "identity" or getattr(part, "alpha", 1.0) != 1.0:
            raise ValueError(f"{name} is {part}: a second activation in a row, or an ELU with alpha other than 1")
        last["activation"] = activations[type(part)]
    elif isinstance(part, nn.LayerNorm) and layers:
        last = layers[-1]
        if last["activation"] != "identity" or part.normalized_shape != (last["out_features"],):
            raise ValueError(f"{name} is {part}: LayerNorm stands between a Linear and its activation")
        last |= {"layer_norm": True, "layer_norm_eps": part.eps}
        ones = np.ones(last["out_features"], np.float32)
        arrays[-1]["norm_scale"] = ones if part.weight is None else _float32(part.weight)
        arrays[-1]["norm_offset"] = 0 * ones if part.bias is None else _float32(part.bias)
    elif not isinstance(part, (nn.Identity, nn.Dropout, nn.Flatten)):
        raise ValueError(f"{name} is {type(part).__name__}: a policy is Conv2d, Linear, LayerNorm and activations")


def _linear_arrays(part: nn.Linear | nn.Conv2d, out: int) -> dict[str, Any]:
    from quarl_lib.quantization.lsq import LearnedEngineInput, LearnedEngineStep

    bias = np.zeros(out, np.float32) if part.bias is None else _float32(part.bias)
    arrays: dict[str, Any] = {"weight": _float32(part.weight), "bias": bias}
    quantizer = getattr(part, "weight_quantizer", None)
    if isinstance(quantizer, LearnedEngineStep):
        arrays |= {"step": _float32(quantizer.step().reshape(-1)), "step_bits": quantizer.num_bits}
    inputs = getattr(part, "input_quantizer", None)
    if isinstance(inputs, LearnedEngineInput) and inputs.running_step.item():
        arrays |= {"input_step": _float32(inputs.step().reshape(1)), "input_limit": inputs.limit}
    return arrays


def _float32(array: Tensor | np.ndarray) -> np.ndarray:
    """Return a contiguous float32 array, a view where the source is one already."""
    if not isinstance(array, np.ndarray):
        array = array.detach().cpu().numpy()
    return np.ascontiguousarray(array, dtype=np.float32)
