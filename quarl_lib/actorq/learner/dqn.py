"""DQN (Mnih et al. 2013), with n-step returns and double Q-learning (van Hasselt et al. 2016) as an option."""

from __future__ import annotations

import torch
from torch.nn import functional

from quarl_lib.actorq.actor.policy import policy_spec
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.learner import acting
from quarl_lib.actorq.learner.networks import mlp
from quarl_lib.actorq.learner.shapes import check_shapes
from quarl_lib.actorq.learner.state import State, apply_gradients, count_step, make_state
from quarl_lib.actorq.replay.transitions import Batch
from quarl_lib.envs.specs import EnvironmentSpec


def td_target(
    r_t: torch.Tensor, d_t: torch.Tensor, target_q_t: torch.Tensor, selector_q_t: torch.Tensor
) -> torch.Tensor:
    """Return r_t + d_t * target_q_t[argmax selector_q_t]: [B], [B], [B, A], [B, A] -> [B].

    Double Q-learning selects by the online network's values, plain Q-learning by the target's own.

    Raises:
        ValueError: a shape is another.
    """
    check_shapes("B, B, B A, B A", r_t=r_t, d_t=d_t, target_q_t=target_q_t, selector_q_t=selector_q_t)
    best = selector_q_t.argmax(-1, keepdim=True)
    return r_t + d_t * target_q_t.gather(1, best)[:, 0]


def q_loss(q_tm1: torch.Tensor, a_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean Huber loss (threshold 1) of the taken actions' values: [B, A], int64 [B], [B] -> scalar.

    Raises:
        ValueError: a shape is another.
    """
    check_shapes("B A, B, B", q_tm1=q_tm1, a_tm1=a_tm1, target=target)
    return functional.huber_loss(q_tm1.gather(1, a_tm1[:, None])[:, 0], target)


def init(config: Config, spec: EnvironmentSpec, device: torch.device) -> State:
    """Return networks drawn from torch's random state, which the caller seeded.

    Raises:
        ValueError: the task's actions are continuous.
    """
    policy = policy_spec(config, spec)
    if not policy.head.discrete:
        raise ValueError(f"algorithm='dqn': {config.task} has continuous actions; take d4pg")
    network = mlp(policy.layers[0].in_features, config.policy_hidden, policy.action_dim)
    return make_state({"policy": network}, {"policy": config.critic_learning_rate}, device, acting.precision_of(config))


def update(config: Config, state: State, batch: Batch) -> dict[str, torch.Tensor]:
    """Take one step with the Q network; return loss and norm as scalars on the state's device."""
    network = state.acting_policy()
    with torch.no_grad():
        target_q_t = state.target["policy"](batch.o_t)
        selector_q_t = network(batch.o_t) if config.double_dqn else target_q_t
        target = td_target(batch.r_t, config.discount * batch.d_t, target_q_t, selector_q_t)
    q_tm1 = network(batch.o_tm1)
    loss = q_loss(q_tm1, batch.a_tm1, target)
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    norm = apply_gradients(state, "policy", gradients, config.max_gradient_norm)
    count_step(state, config.target_update_period)
    return {"critic_loss": loss.detach(), "mean_value": q_tm1.detach().mean(), "critic_gradient_norm": norm}
