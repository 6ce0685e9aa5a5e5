"""D4PG's maths by hand and against independent implementations, and its update on a problem with a known answer."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.learner import d4pg
from quarl_lib.actorq.replay.transitions import Batch
from quarl_lib.envs import specs

SPEC = specs.EnvironmentSpec(
    specs.Array((3,), np.float32),
    specs.BoundedArray((1,), np.float32, -1.0, 1.0),
    specs.Array((), np.float32),
    specs.BoundedArray((), np.float32, 0, 1),
)


def project_by_triangles(atoms, probabilities, support):
    """Return the projection as rlax writes it: each mass weighed by its distance to every atom, in spacings."""
    spacing = support[1] - support[0]
    clipped = np.clip(atoms, support[0], support[-1])
    shares = np.clip(1 - np.abs(clipped[:, None, :] - support[None, :, None]) / spacing, 0, 1)
    return (shares * probabilities[:, None, :]).sum(-1)


def project_by_loop(atoms, probabilities, support):
    """Return the projection as Bellemare et al. 2017, algorithm 1, has it, one atom after the other."""
    projected = np.zeros((len(atoms), len(support)))
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    for row in range(len(atoms)):
        for atom, mass in zip(atoms[row], probabilities[row], strict=True):
            position = (min(max(atom, support[0]), support[-1]) - support[0]) / spacing
            position = min(position, len(support) - 1)  # rounding can carry it past the end
            lower, upper = int(np.floor(position)), int(np.ceil(position))
            if lower == upper:
                projected[row, lower] += mass
            else:
                projected[row, lower] += mass * (upper - position)
                projected[row, upper] += mass * (position - lower)
    return projected


def test_projection_by_hand():
    support = torch.tensor([0.0, 1.0, 2.0])
    atoms = torch.tensor([[0.25, 2.0, 7.0], [-3.0, 1.0, 1.5]])
    probabilities = torch.tensor([[0.4, 0.5, 0.1], [0.2, 0.2, 0.6]])
    expected = [[0.3, 0.1, 0.6], [0.2, 0.5, 0.3]]
    np.testing.assert_allclose(d4pg.project(atoms, probabilities, support), expected, atol=1e-6)


WIDE, ROW, COLUMN, SUPPORT = torch.zeros(4, 3), torch.zeros(4), torch.zeros(4, 1), torch.linspace(-1, 1, 3)


@pytest.mark.parametrize(
    ("loss", "arguments", "named"),
    [
        (d4pg.project, (WIDE, ROW, SUPPORT), r"probabilities has shape \[4\]: give \[B, K\], B = 4, K = 3"),
        (d4pg.project, (WIDE, WIDE[:, :2], SUPPORT), r"probabilities has shape \[4, 2\]"),
        (d4pg.project, (WIDE, WIDE, SUPPORT[None]), r"support has shape \[1, 3\]: give \[N\]"),
        (d4pg.target_distribution, (WIDE, COLUMN, ROW, SUPPORT), r"r_t has shape \[4, 1\]: give \[B\]"),
        (d4pg.target_distribution, (WIDE, ROW, torch.tensor(0.9), SUPPORT), r"d_t has shape \[\]"),
        (d4pg.target_distribution, (WIDE, ROW, ROW, torch.zeros(4)), r"support has shape \[4\]: give \[N\]"),
        (d4pg.critic_loss, (WIDE, WIDE[:1]), r"target has shape \[1, 3\]: give \[B, N\], B = 4"),
        (d4pg.critic_loss, (WIDE[0], WIDE), r"logits_tm1 has shape \[3\]: give \[B, N\]"),
        (d4pg.mean_value, (WIDE, COLUMN), r"support has shape \[4, 1\]"),
    ],
)
def test_wrong_shapes_are_refused_before_they_broadcast(loss, arguments, named):
    with pytest.raises(ValueError, match=named):
        loss(*arguments)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.floats(-200, 100), st.floats(0.1, 300), st.integers(0, 10_000))
def test_projection_against_two_independent_ones(num_atoms, vmin, width, seed):
    rng = np.random.default_rng(seed)
    support = np.linspace(vmin, vmin + width, num_atoms)
    atoms = rng.uniform(vmin - width, vmin + 2 * width, (4, num_atoms))
    probabilities = rng.dirichlet(np.ones(num_atoms), 4)
    ours = d4pg.project(*map(torch.from_numpy, (atoms, probabilities, support))).numpy()
    np.testing.assert_allclose(ours, project_by_loop(atoms, probabilities, support), atol=1e-8)
    np.testing.assert_allclose(ours, project_by_triangles(atoms, probabilities, support), atol=1e-8)
    np.testing.assert_allclose(ours.sum(1), 1.0)


def test_projection_of_the_support_onto_itself_changes_nothing():
    support = torch.linspace(-150.0, 150.0, 51)
    probabilities = torch.rand(5, 51).softmax(-1)
    np.testing.assert_allclose(d4pg.project(support.expand(5, -1), probabilities, support), probabilities, atol=1e-5)


def test_target_and_loss_by_hand():
    support = torch.tensor([0.0, 1.0, 2.0])
    next_logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]]))
    # First row: 0.5 + 0.5 * (0, 1, 2) = (0.5, 1, 1.5). Second row ends: all mass at the reward 1.25.
    target = d4pg.target_distribution(next_logits, torch.tensor([0.5, 1.25]), torch.tensor([0.5, 0.0]), support)
    np.testing.assert_allclose(target, [[0.25, 0.625, 0.125], [0.0, 0.75, 0.25]], atol=1e-6)
    predicted = torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.4, 0.4]])
    expected = -np.mean(
        [
            0.25 * np.log(0.25) + 0.625 * np.log(0.5) + 0.125 * np.log(0.25),
            0.75 * np.log(0.4) + 0.25 * np.log(0.4),
        ]
    )
    assert float(d4pg.critic_loss(torch.log(predicted), target)) == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(d4pg.mean_value(torch.log(predicted), support), [1.0, 1.2], atol=1e-6)


def bandit(config, steps):
    """Train on one-step episodes whose reward is 1 - (action - 0.5)^2 whatever the observation."""
    torch.manual_seed(0)
    state = d4pg.init(config, SPEC, torch.device("cpu"))
    metrics = {}
    for _ in range(steps):
        actions = torch.rand(64, 1) * 2 - 1
        observations = torch.randn(64, 3)
        rewards = 1 - (actions[:, 0] - 0.5) ** 2
        metrics = d4pg.update(config, state, Batch(observations, actions, rewards, torch.zeros(64), observations))
    return state, metrics


def test_update_finds_the_best_action():
    config = Config(policy_hidden=(32, 32), critic_hidden=(64, 64), vmin=-2.0, vmax=2.0, num_atoms=21,
                    policy_learning_rate=3e-3, critic_learning_rate=3e-3)  # fmt: skip
    state, metrics = bandit(config, 600)
    actions = state.policy(torch.randn(100, 3)).detach()
    assert float((actions - 0.5).abs().mean()) < 0.1
    assert float(metrics["mean_value"]) == pytest.approx(1.0, abs=0.1)


def test_targets_move_only_when_it_is_time():
    config = Config(policy_hidden=(8,), critic_hidden=(8,), target_update_period=3)
    state, _ = bandit(config, 2)
    online, target = ([p.clone() for p in part["critic"].parameters()] for part in (state.online, state.target))
    assert any((a != b).any() for a, b in zip(online, target, strict=True))
    state, _ = bandit(config, 3)
    for name in ("policy", "critic"):
        pairs = zip(state.online[name].parameters(), state.target[name].parameters(), strict=True)
        assert all((a == b).all() for a, b in pairs)


def test_save_and_restore_go_on_as_if_nothing_had_happened():
    config = Config(policy_hidden=(8,), critic_hidden=(8,))
    state, _ = bandit(config, 5)
    torch.manual_seed(1)
    other = d4pg.init(config, SPEC, torch.device("cpu"))
    other.restore(copy.deepcopy(state.save()))  # as through a file
    batch = Batch(torch.ones(4, 3), torch.zeros(4, 1), torch.ones(4), torch.ones(4), torch.ones(4, 3))
    for each in (state, other):
        d4pg.update(config, each, batch)
    assert other.learner_steps == 6
    for a, b in zip(state.policy.parameters(), other.policy.parameters(), strict=True):
        assert (a == b).all()


def test_discrete_actions_are_refused():
    with pytest.raises(ValueError, match="dqn"):
        d4pg.init(Config(), SPEC._replace(actions=specs.DiscreteArray(2)), torch.device("cpu"))
