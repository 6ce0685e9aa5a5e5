"""D4PG (Barth-Maron et al. 2018): a deterministic policy and a critic whose value is a distribution over atoms."""

from __future__ import annotations

from typing import cast

import torch
from torch.nn import functional

from quarl_lib.actorq.actor.policy import policy_spec
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.learner import acting
from quarl_lib.actorq.learner.networks import DistributionalCritic, make_policy
from quarl_lib.actorq.learner.shapes import check_shapes
from quarl_lib.actorq.learner.state import State, apply_gradients, count_step, make_state
from quarl_lib.actorq.replay.transitions import Batch
from quarl_lib.envs.specs import EnvironmentSpec


def project(atoms: torch.Tensor, probabilities: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """Project distributions onto evenly spaced atoms, each mass split between its two neighbours.

    Bellemare et al. 2017, equation 7.

    Args:
        atoms: [B, K] where the masses lie; what lies outside the support counts as its end.
        probabilities: [B, K] the masses.
        support: [N] evenly spaced.

    Returns:
        [B, N], rows summing to what `probabilities` sum to.

    Raises:
        ValueError: a shape is another.
    """
    check_shapes("B K, B K, N", atoms=atoms, probabilities=probabilities, support=support)
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    position = ((atoms.clamp(support[0], support[-1]) - support[0]) / spacing).clamp_(0, len(support) - 1)
    below = position.floor()
    above_share = position - below
    index = below.long()
    projected = probabilities.new_zeros(len(probabilities), len(support))
    projected.scatter_add_(1, index, probabilities * (1 - above_share))
    projected.scatter_add_(1, (index + 1).clamp_(max=len(support) - 1), probabilities * above_share)
    return projected


def target_distribution(
    next_logits: torch.Tensor, r_t: torch.Tensor, d_t: torch.Tensor, support: torch.Tensor
) -> torch.Tensor:
    """Return the distribution of r_t + d_t Z over the support: [B, N] logits, [B], [B], [N] -> [B, N].

    Raises:
        ValueError: a shape is another.
    """
    check_shapes("B N, B, B, N", next_logits=next_logits, r_t=r_t, d_t=d_t, support=support)
    return project(r_t[:, None] + d_t[:, None] * support, functional.softmax(next_logits, -1), support)


def critic_loss(logits_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of the critic's distributions against their targets, both [B, N].

    Raises:
        ValueError: a shape is another.
    """
    check_shapes("B N, B N", logits_tm1=logits_tm1, target=target)
    return -(target * functional.log_softmax(logits_tm1, -1)).sum(-1).mean()


def mean_value(logits: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """Return each distribution's mean: [B, N] logits, [N] -> [B].

    Raises:
        ValueError: a shape is another.
    """
    check_shapes("B N, N", logits=logits, support=support)
    return (functional.softmax(logits, -1) * support).sum(-1)


def init(config: Config, spec: EnvironmentSpec, device: torch.device) -> State:
    """Return networks drawn from torch's random state, which the caller seeded.

    Raises:
        ValueError: the task's actions are counted.
    """
    policy = policy_spec(config, spec)
    if policy.head.discrete:
        raise ValueError(f"algorithm='d4pg': {config.task} has discrete actions; take dqn")
    observations, actions = policy.layers[0].in_features, policy.action_dim
    networks = {
        "policy": make_policy(observations, actions, config.policy_hidden),
        "critic": DistributionalCritic(
            observations, actions, config.critic_hidden, config.num_atoms, config.vmin, config.vmax,
            config.critic_layer_norm,
        ),
    }  # fmt: skip
    rates = {"policy": config.policy_learning_rate, "critic": config.critic_learning_rate}
    return make_state(networks, rates, device, acting.precision_of(config))


def update(config: Config, state: State, batch: Batch) -> dict[str, torch.Tensor]:
    """Take one step with policy and critic; return losses and norms as scalars on the state's device."""
    policy, critic = state.acting_policy(), cast(DistributionalCritic, state.online["critic"])
    support = critic.support
    with torch.no_grad():
        next_logits = state.target["critic"](batch.o_t, state.target["policy"](batch.o_t))
        target = target_distribution(next_logits, batch.r_t, config.discount * batch.d_t, support)
    loss = critic_loss(critic(batch.o_tm1, batch.a_tm1), target)
    critic_gradients = torch.autograd.grad(loss, list(critic.parameters()))

    # The critic's weights take no part in the policy's gradient: without them the backward pass is shorter.
    critic.requires_grad_(False)
    value = mean_value(critic(batch.o_tm1, policy(batch.o_tm1)), support).mean()
    policy_gradients = torch.autograd.grad(-value, list(policy.parameters()))
    critic.requires_grad_(True)

    critic_norm = apply_gradients(state, "critic", critic_gradients, config.max_gradient_norm)
    policy_norm = apply_gradients(state, "policy", policy_gradients, config.max_gradient_norm)
    count_step(state, config.target_update_period)
    return {
        "critic_loss": loss.detach(),
        "mean_value": value.detach(),
        "critic_gradient_norm": critic_norm,
        "policy_gradient_norm": policy_norm,
    }
