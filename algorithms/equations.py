"""The equations that several papers share: KL divergence, distillation loss, ensemble, soft
cross-entropy, weighted average of models.

Paper (FedSDD)     here                 shape       note
F(x|w_{t,k})       member_logits        [M, N, C]   raw logits of the members of an ensemble
F_ensemble         teacher_logits       [N, C]      raw logits of the teacher, before the softmax
F(x|w)             student_logits       [N, C]      raw logits of the student
w^l*_{t,n}         state_dicts          M models    what M clients upload
|X_{t,n}|          weights              [M]         their numbers of samples

Every function takes float32 or wider, and returns the type that it takes.
"""
import torch
import torch.nn.functional as F


def kl_divergence(teacher_logits, student_logits, temperature=1.0):
    """KL(teacher || student) of each sample in nats, without the factor temperature².

        KL[n] = sum_c p[n,c] (ln p[n,c] - ln q[n,c])
        p = softmax(teacher_logits / T),  q = softmax(student_logits / T)

    teacher_logits, student_logits   float [N, C]; -inf in the teacher is p = 0, and 0 ln 0 = 0
    returns                          [N]; the teacher gets no gradient
    source                           Hinton, Vinyals, Dean (2015); FedGKT Eq. (6)-(7)
    >>> kl_divergence(torch.tensor([[.8, .2]]).log(), torch.tensor([[.5, .5]]).log())
    tensor([0.1927])
    """
    teacher_log_probs = F.log_softmax(teacher_logits.detach() / temperature, dim=-1)     # ln p
    student_log_probs = F.log_softmax(student_logits / temperature, dim=-1)              # ln q
    terms = teacher_log_probs.exp() * (teacher_log_probs - student_log_probs)            # [N, C]
    terms = terms.masked_fill(teacher_log_probs == float("-inf"), 0.0)                   # 0 ln 0
    return terms.sum(-1)


def distillation_loss(teacher_logits, student_logits, temperature=1.0):
    """temperature² times the mean of KL(teacher || student): [N, C], [N, C] -> scalar.

    The factor keeps the size of the gradient when the temperature changes.
    source    FedSDD Eq. (4); Hinton et al. (2015)
    """
    return temperature**2 * kl_divergence(teacher_logits, student_logits, temperature).mean()


def ensemble_logits(member_logits):
    """The mean of the members' logits, before the softmax: [M, N, C] -> [N, C].

    source    FedSDD Eq. (3), (5); FedDF
    >>> member_logits = torch.tensor([[[4., 0.]], [[0., 1.]]])
    >>> ensemble_logits(member_logits).softmax(-1)      # the mean of the softmaxes: .6255, .3745
    tensor([[0.8176, 0.1824]])
    """
    return member_logits.mean(0)


def soft_cross_entropy(logits, target_probs):
    """- sum_c y[n,c] ln q[n,c] of each sample, q = softmax(logits): [N, C], [N, C] -> [N].

    The target gets no gradient.
    >>> soft_cross_entropy(torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]))
    tensor([0.6931])
    """
    log_probs = F.log_softmax(logits, dim=-1)                                            # [N, C]
    return -(target_probs.detach() * log_probs).sum(-1)


def average_weights(state_dicts, weights):
    """The weighted average of models of one architecture, as a new state_dict.   FedSDD Eq. (2)

    state_dicts   list of M state_dicts with the same names and shapes
    weights       M numbers >= 0, for example sample counts; they are normalized to sum to 1.
                  Leave out a model that has nan: with weight 0 it makes the average nan
    returns       floating-point entries (also BatchNorm's running statistics) are averaged;
                  integer entries (BatchNorm's counters) take the maximum; an entry that is the same
                  in all models stays, for example a mask of -inf
    raises        ValueError: see `check_models`
    """
    check_models(state_dicts, weights)
    total = float(sum(weights))
    shares = [float(w) / total for w in weights]                                         # [M]
    average = {}
    for name, first in state_dicts[0].items():
        values = [state_dict[name] for state_dict in state_dicts]
        if all(torch.equal(first, value) for value in values):
            average[name] = first.clone()
        elif first.is_floating_point():
            average[name] = sum(share * value for share, value in zip(shares, values))
        else:
            average[name] = torch.stack(values).amax(0)
    return average


def check_models(state_dicts, weights):
    """Raises ValueError if there is no average of these models with these weights.

    That is: no models, not one weight per model, a negative or non-finite weight, weights that sum
    to 0, models with different names or shapes.
    """
    weights = [float(w) for w in weights]
    if not state_dicts or len(state_dicts) != len(weights):
        raise ValueError(f"needs models and one weight for each, "
                         f"not {len(state_dicts)} models and {len(weights)} weights")
    if not all(0 <= w < float("inf") for w in weights) or sum(weights) == 0:
        raise ValueError(f"weights must be finite, >= 0 and not all 0, not {weights}")
    shapes = [{name: tuple(value.shape) for name, value in state_dict.items()}
              for state_dict in state_dicts]
    for m, other in enumerate(shapes):
        for name in shapes[0] | other:
            if shapes[0].get(name) != other.get(name):
                raise ValueError(f"models of one architecture are needed: {name} has shape "
                                 f"{shapes[0].get(name, 'none')} in model 0 and "
                                 f"{other.get(name, 'none')} in model {m}")
