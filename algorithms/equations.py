"""The equations that several papers share: KL divergence, distillation loss, soft cross-entropy,
weighted average of models.

Paper (FedSDD)     here                 shape       note
F_ensemble         teacher_logits       [N, C]      raw scores of the teacher, before the softmax
F(x|w)             student_logits       [N, C]      raw scores of the student
w^l*_{t,n}         state_dicts          M models    what M clients upload
|X_{t,n}|          weights              [M]         their numbers of samples
"""
import torch
import torch.nn.functional as F


def kl_divergence(teacher_logits, student_logits, temperature=1.0):
    """KL(teacher || student) of each sample in nats, without the factor temperature².

        KL[n] = sum_c p[n,c] (ln p[n,c] - ln q[n,c])
        p = softmax(teacher_logits / T),  q = softmax(student_logits / T)

    teacher_logits, student_logits   float [N, C]
    returns                          float [N]; the teacher gets no gradient
    source                           Hinton, Vinyals, Dean (2015); FedGKT Eq. (6)-(7)
    >>> kl_divergence(torch.tensor([[.8, .2]]).log(), torch.tensor([[.5, .5]]).log())
    tensor([0.1927])
    """
    teacher_log_probs = F.log_softmax(teacher_logits.detach() / temperature, dim=-1)     # [N, C]
    student_log_probs = F.log_softmax(student_logits / temperature, dim=-1)              # [N, C]
    return (teacher_log_probs.exp() * (teacher_log_probs - student_log_probs)).sum(-1)


def distillation_loss(teacher_logits, student_logits, temperature=1.0):
    """temperature² times the mean of KL(teacher || student): [N, C], [N, C] -> scalar.

    The factor keeps the size of the gradient when the temperature changes.
    source    FedSDD Eq. (4); Hinton et al. (2015). Needs `kl_divergence`.
    """
    return temperature**2 * kl_divergence(teacher_logits, student_logits, temperature).mean()


def soft_cross_entropy(logits, target_probs):
    """- sum_c y[n,c] ln q[n,c] of each sample, q = softmax(logits): [N, C], [N, C] -> float [N].

    The target gets no gradient.
    >>> soft_cross_entropy(torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]))
    tensor([0.6931])
    """
    return -(target_probs.detach() * F.log_softmax(logits, dim=-1)).sum(-1)


def average_weights(state_dicts, weights):
    """The weighted average of models of one architecture, as a new state_dict.   FedSDD Eq. (2)

    state_dicts   list of M state_dicts with the same keys
    weights       M numbers >= 0, for example sample counts; they are normalized to sum to 1
    returns       floating-point entries (also BatchNorm's running statistics) are averaged;
                  integer entries (BatchNorm's counters) take the maximum and keep their dtype
    raises        ValueError: no models, another number of weights, a negative or non-finite
                  weight, weights that sum to 0
    """
    weights = [float(w) for w in weights]
    if not state_dicts or len(state_dicts) != len(weights):
        raise ValueError(f"needs models and one weight for each, "
                         f"not {len(state_dicts)} models and {len(weights)} weights")
    if not all(0 <= w < float("inf") for w in weights) or sum(weights) == 0:
        raise ValueError(f"weights must be finite, >= 0 and not all 0, not {weights}")
    shares = [w / sum(weights) for w in weights]
    average = {}
    for name, first in state_dicts[0].items():
        values = [state_dict[name] for state_dict in state_dicts]
        if first.is_floating_point():
            average[name] = sum(share * value for share, value in zip(shares, values))
        else:
            average[name] = torch.stack(values).amax(0)
    return average
