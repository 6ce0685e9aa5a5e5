"""DQN's target and loss by hand and against a slow loop, and its update on a problem with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.learner import dqn
from quarl_lib.actorq.replay.transitions import Batch
from quarl_lib.envs import specs

SPEC = specs.EnvironmentSpec(
    specs.Array((2,), np.float32),
    specs.DiscreteArray(3),
    specs.Array((), np.float32),
    specs.BoundedArray((), np.float32, 0, 1),
)
CONFIG = Config(
    task="gym:CartPole-v0", algorithm="dqn", policy_hidden=(32,), critic_learning_rate=1e-2, discount=0.9,
    target_update_period=20,
)  # fmt: skip


def test_target_by_hand():
    target_q = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 0.0]])
    online_q = torch.tensor([[0.0, 1.0, 9.0], [1.0, 2.0, 0.0]])
    reward, discount = torch.tensor([10.0, -1.0]), torch.tensor([0.5, 0.0])
    assert dqn.td_target(reward, discount, target_q, target_q).tolist() == [12.5, -1.0]
    assert dqn.td_target(reward, discount, target_q, online_q).tolist() == [11.0, -1.0]


def test_loss_by_hand():
    q_tm1 = torch.tensor([[1.0, 2.0], [0.0, 5.0]])
    loss = dqn.q_loss(q_tm1, torch.tensor([0, 1]), torch.tensor([1.5, 2.0]))
    assert float(loss) == pytest.approx((0.5 * 0.5**2 + (3.0 - 0.5)) / 2)


Q, ROW, COLUMN = torch.zeros(4, 3), torch.zeros(4), torch.zeros(4, 1)


@pytest.mark.parametrize(
    ("loss", "arguments", "named"),
    [
        (dqn.td_target, (COLUMN, ROW, Q, Q), r"r_t has shape \[4, 1\]: give \[B\]"),
        (dqn.td_target, (ROW, torch.tensor(0.9), Q, Q), r"d_t has shape \[\]: give \[B\], B = 4"),
        (dqn.td_target, (ROW, ROW, ROW, Q), r"target_q_t has shape \[4\]: give \[B, A\]"),
        (dqn.td_target, (ROW, ROW, Q, Q[:, :2]), r"selector_q_t has shape \[4, 2\]"),
        (dqn.q_loss, (Q, COLUMN.long(), ROW), r"a_tm1 has shape \[4, 1\]"),
        (dqn.q_loss, (Q, ROW.long(), COLUMN), r"target has shape \[4, 1\]"),
        (dqn.q_loss, (Q, ROW[:2].long(), ROW), r"a_tm1 has shape \[2\]: give \[B\], B = 4"),
    ],
)
def test_wrong_shapes_are_refused_before_they_broadcast(loss, arguments, named):
    with pytest.raises(ValueError, match=named):
        loss(*arguments)


def test_target_and_loss_against_a_loop():
    rng = np.random.default_rng(0)
    batch, actions = 50, 4
    q_tm1, target_q, online_q = rng.normal(size=(3, batch, actions)) * 3
    taken, reward = rng.integers(actions, size=batch), rng.normal(size=batch)
    discount = rng.uniform(size=batch) * (rng.uniform(size=batch) > 0.3)
    losses = []
    for row in range(batch):
        best = max(range(actions), key=lambda action, row=row: online_q[row][action])  # type: ignore[misc]
        error = q_tm1[row][taken[row]] - (reward[row] + discount[row] * target_q[row][best])
        losses.append(0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5)
    tensor = torch.from_numpy
    target = dqn.td_target(tensor(reward), tensor(discount), tensor(target_q), tensor(online_q))
    assert float(dqn.q_loss(tensor(q_tm1), tensor(taken), target)) == pytest.approx(np.mean(losses), rel=1e-12)


@pytest.mark.parametrize("double", [True, False])
def test_update_learns_a_two_step_problem(double):
    """From state 0 action 2 leads to state 1 without reward; there every action ends the episode with reward 1."""
    torch.manual_seed(0)
    config = CONFIG.replace(double_dqn=double)
    state = dqn.init(config, SPEC, torch.device("cpu"))
    start, end = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    for _ in range(400):
        action = torch.randint(0, 3, (64,))
        at_start = torch.rand(64) < 0.5
        moves = at_start & (action == 2)
        observation = torch.where(at_start[:, None], start, end)
        reward, goes_on = (~at_start).float(), moves.float()
        metrics = dqn.update(config, state, Batch(observation, action, reward, goes_on, end.expand(64, 2)))
    with torch.no_grad():
        q = state.policy(torch.stack([start, end]))
    np.testing.assert_allclose(q, [[0.0, 0.0, 0.9], [1.0, 1.0, 1.0]], atol=0.05)
    assert float(metrics["critic_loss"]) < 0.01


def test_continuous_actions_are_refused():
    with pytest.raises(ValueError, match="d4pg"):
        dqn.init(CONFIG, SPEC._replace(actions=specs.BoundedArray((1,), np.float32, -1, 1)), torch.device("cpu"))
