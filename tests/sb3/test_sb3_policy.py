"""Actions and standard deviations of acting policies: by hand, and against Stable-Baselines3's distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread, PredictedSpread, StateDependentSpread

LOW, HIGH = np.array([-2.0, 0.0]), np.array([2.0, 1.0])


def identity_policy(kind: str, **options) -> ActingPolicy:
    return ActingPolicy(nn.Identity(), nn.Identity(), kind, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["categorical", "q_values"])
def test_discrete_actions_are_the_first_largest_output(kind: str) -> None:
    outputs = torch.tensor([[0.0, 2.0, 1.0], [0.0, 0.0, 0.0], [-3.0, -1.0, -1.0]])
    assert identity_policy(kind).actions(outputs).tolist() == [1, 0, 1]


def test_deterministic_actions_are_scaled_from_minus_one_one_to_the_bounds() -> None:
    policy = identity_policy("deterministic", low=LOW, high=HIGH)
    actions = policy.actions(np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]], np.float32))
    assert actions.tolist() == [[-2.0, 0.0], [0.0, 0.75], [2.0, 1.0]]
    assert actions.dtype == np.float32


def test_gaussian_means_are_clipped_or_squashed_to_the_bounds() -> None:
    spread = ConstantSpread(torch.zeros(2))
    clipped = identity_policy("gaussian", spread=spread, low=LOW, high=HIGH)
    assert clipped.actions(torch.tensor([[-5.0, 0.25], [1.5, 7.0]])).tolist() == [[-2.0, 0.25], [1.5, 1.0]]
    squashed = identity_policy("gaussian", spread=spread, low=LOW, high=HIGH, squash=True)
    # tanh(0) = 0 is the middle of the bounds, tanh(ln 3 / 2) = 1/2 three quarters of the way.
    actions = squashed.actions(torch.tensor([[0.0, 0.0], [np.log(3) / 2] * 2]))
    np.testing.assert_allclose(actions, [[0.0, 0.5], [1.0, 0.75]], atol=1e-6)


def test_constant_spread_is_exp_of_log_std_for_every_row() -> None:
    policy = identity_policy("gaussian", spread=ConstantSpread(torch.tensor([0.0, np.log(2.0)])), low=LOW, high=HIGH)
    np.testing.assert_allclose(policy.std(torch.zeros(3, 2)).numpy(), [[1.0, 2.0]] * 3, rtol=1e-6)


def test_predicted_spread_clamps_as_sac_does() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    std = PredictedSpread(layer)(torch.tensor([[-50.0], [0.0], [9.0]])).detach().numpy().ravel()
    np.testing.assert_allclose(std, np.exp([-20.0, 0.0, 2.0]), rtol=1e-6)


@pytest.mark.parametrize("use_expln", [False, True])
@pytest.mark.parametrize("full_std", [False, True])
def test_state_dependent_spread_is_that_of_stable_baselines3(full_std: bool, use_expln: bool) -> None:
    from stable_baselines3.common.distributions import StateDependentNoiseDistribution

    generator = torch.Generator().manual_seed(0)
    log_std = torch.randn(5, 3 if full_std else 1, generator=generator)
    latent = torch.randn(7, 5, generator=generator)
    distribution = StateDependentNoiseDistribution(3, full_std=full_std, use_expln=use_expln)
    distribution.proba_distribution_net(5, latent_sde_dim=5)
    expected = distribution.proba_distribution(torch.zeros(7, 3), log_std, latent).distribution.stddev
    actual = StateDependentSpread(log_std, 3, use_expln)(latent)
    torch.testing.assert_close(actual, expected)


def test_state_dependent_spread_by_hand() -> None:
    # variance = 3^2 * 0.5^2 + 4^2 * 1^2 = 2.25 + 16
    spread = StateDependentSpread(torch.tensor([[0.5], [1.0]]).log(), num_actions=1)
    assert spread(torch.tensor([[3.0, 4.0]])).item() == pytest.approx(18.25**0.5, rel=1e-6)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="kind='greedy'"):
        identity_policy("greedy")
    with pytest.raises(ValueError, match="spread"):
        identity_policy("gaussian", low=LOW, high=HIGH)
    with pytest.raises(ValueError, match="finite bounds"):
        identity_policy("deterministic", low=np.array([-np.inf]), high=np.array([np.inf]))
    with pytest.raises(ValueError, match="'q_values' has no standard deviation"):
        identity_policy("q_values").std(torch.zeros(1, 2))
