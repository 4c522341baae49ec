"""What no paper claims as its own: the federation, seeded streams, clients in parallel, batches, prediction, KL, averaging.

Words used in every algorithm file (one meaning each):

name                 shape                  meaning
*_logits             [N, C], [M, N, C]      raw scores; never probabilities (`*_probs`) nor log-probabilities (`*_log_probs`)
M, N, C                                     clients or ensemble members, samples, classes
rows                 int64 [B]              which samples are in a batch: positions in a `Data`, the same ones for the whole run
t                                           the round, counted from 1; round 0 is the untrained start
i                                           a client, 0 ... num_clients - 1
"""
import contextlib
import copy
import itertools
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class Data(NamedTuple):
    """Images and their labels, row by row: row n means the same sample for the whole run."""

    images: Tensor         # float32 [n, c, h, w], normalised, channels-last
    labels: Tensor | None  # int64 [n], or None where the labels are withheld


@dataclass
class Federation:
    """Everything an algorithm is given: who holds which samples, which networks, which seed. It is never changed."""

    private: list[Data]                          # private[i]: the samples of client i, on `device`
    test: Data
    num_classes: int
    client_model: Callable[..., nn.Module]       # client_model(i, init=0): a fresh network; `init` names the seed of its weights
    architecture: list[str]                      # the network's name, per client
    seed: int
    device: torch.device
    server_model: Callable[..., nn.Module] | None = None     # server_model(init=0)
    public: Data | None = None                   # labels are None for algorithms that must not see them
    public_test: Data | None = None
    validation: Data | None = None               # for early stopping and schedules: never the test set
    augment: Callable[[Tensor, np.random.Generator], Tensor] | None = None   # what a student sees; teachers see clean images
    amp: bool = False                            # bfloat16 autocast in every forward pass


# ---------------------------------------------------------------------------------------------------------------------
# Randomness: each purpose has a stream of its own, so that nothing depends on the order in which things are computed.

def _words(keys):
    """Each key as one 32-bit word: whole numbers as they are, strings by their CRC."""
    return [zlib.crc32(key.encode()) if isinstance(key, str) else int(key) for key in keys]


def stream(seed, *keys):
    """The numpy Generator of one purpose, e.g. stream(seed, "local", t, i): equal keys, equal numbers; other keys, independent."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_words(keys)))


@contextlib.contextmanager
def seeded(seed, *keys):
    """Inside the block torch's default generators are seeded by (seed, keys); outside they go on as if nothing had happened.

    For what only those can draw: initial weights and dropout.
    """
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    number = int(np.random.SeedSequence(seed, spawn_key=_words(keys)).generate_state(1, np.uint64)[0])
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(number)      # torch.manual_seed also notes a stack trace for each absent kind of device
        if gpus:
            torch.cuda.manual_seed_all(number)
        yield


# ---------------------------------------------------------------------------------------------------------------------
# Clients

def count_active(num_clients, participation):
    """How many clients take part in a round: the share `participation` in (0, 1] of all, rounded, at least one."""
    return max(1, round(participation * num_clients))


def sample_clients(num_clients, participation, rng):
    """Sorted ids of the clients that take part in a round, drawn without replacement."""
    return sorted(rng.choice(num_clients, size=count_active(num_clients, participation), replace=False).tolist())


def by_architecture(fed):
    """{name of a network: the ids of its clients}, in the order of each network's first client."""
    return {name: [i for i, own in enumerate(fed.architecture) if own == name] for name in dict.fromkeys(fed.architecture)}


def active_clients(fed, participation, t):
    """{name of a network: sorted ids of its clients that take part in round t}: of each network the same share, at least one.

    Where all clients have one network these are the clients that FedAvg draws.
    """
    rng = stream(fed.seed, "active", t)
    return {name: [ids[j] for j in sample_clients(len(ids), participation, rng)] for name, ids in by_architecture(fed).items()}


def run_clients(fn, ids, device="cpu"):
    """The papers' "for each client in parallel do": [fn(i) for i in ids], in this order.

    fn(i) is pure: it returns tensors (in tuples, lists, dicts) and changes nothing outside. Under torchrun, client ids[j] runs on
    process j % world_size, and every process gets all results, with their tensors on its own `device`.
    """
    if not dist.is_initialized():
        run_clients.done += len(ids)
        return [fn(i) for i in ids]
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = [fn(i) for i in ids[rank::world_size]]
    run_clients.done += len(mine)
    everyones = [None] * world_size
    dist.all_gather_object(everyones, to_device(mine, "cpu"))
    return [to_device(everyones[j % world_size][j // world_size], device) for j in range(len(ids))]


run_clients.done = 0    # how many clients this process has run


def to_device(value, device):
    """The same nested dicts, lists and tuples with every tensor on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(x, device) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(x, device) for x in value)
    return value


def tensors(value):
    """All tensors inside nested dicts, lists and tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for x in value.values() if isinstance(value, dict) else value:
            yield from tensors(x)


HUGE = 1e30    # so large that a few of them, divided by a temperature or weighted, leave float32: as good as infinity


def is_finite(upload):
    """True if no tensor of the (nested) upload holds nan, infinity, or a number of size HUGE."""
    return all(bool((x.abs() < HUGE).all()) for x in tensors(upload))


def finite(uploads):
    """The uploads [M, ...] without those that hold nan, infinity, or a number of size HUGE: [m, ...], m <= M."""
    return uploads[(uploads.abs() < HUGE).flatten(1).all(1)]


# ---------------------------------------------------------------------------------------------------------------------
# Batches, forward passes, accuracy

def batches(num_samples, batch_size, epochs, rng, device="cpu"):
    """Yields `rows` (int64 [B]) of each batch of `epochs` shuffled passes; a pass may end in a smaller batch, none is dropped."""
    for _ in range(epochs):
        yield from torch.from_numpy(rng.permutation(num_samples)).to(device).split(batch_size)


def forward(fed, model, images):
    """Logits, float32 [B, C], in the mode the model is in; under `amp` computed in bfloat16.

    A lone training sample is shown twice and answered once: BatchNorm on a 1x1 map needs two values to have a variance.
    """
    shown = images.expand(2, -1, -1, -1) if model.training and len(images) == 1 else images
    with torch.autocast(images.device.type, torch.bfloat16, enabled=fed.amp):
        return model(shown)[: len(images)].float()


@torch.no_grad()
def predict_logits(fed, model, images, batch_size=500):
    """Logits, float32 [N, C], of clean images in eval mode, without a graph; the model's mode is put back."""
    was_training = model.training
    model.eval()
    logits = [forward(fed, model, batch) for batch in images.split(batch_size) if len(batch)]
    model.train(was_training)
    return torch.cat(logits) if logits else torch.empty(0, fed.num_classes, device=fed.device)


def predict_members(fed, models, model_states, images):
    """Logits, float32 [M, N, C], of M models: models[m] is the workbench that the state_dict model_states[m] is loaded into."""
    member_logits = []
    for model, model_state in zip(models, model_states, strict=True):
        model.load_state_dict(model_state)
        member_logits.append(predict_logits(fed, model, images))
    return torch.stack(member_logits)


def accuracy(logits, labels):
    """Share of the samples whose largest logit is the label's: a float in [0, 1]."""
    return (logits.argmax(1) == labels).float().mean().item()


def test_accuracy(fed, model, model_state):
    """Accuracy on the test set of the model whose state_dict is given; `model` is the workbench it is loaded into."""
    return accuracy(predict_members(fed, [model], [model_state], fed.test.images)[0], fed.test.labels)


def server_metrics(fed, bench, model_states):
    """Test accuracy of the server's models: the mean over the networks, and each one's own where there are several.

    bench, model_states   {name of a network: its workbench}, {name of a network: state_dict}
    """
    own = {name: test_accuracy(fed, bench[name], model_state) for name, model_state in model_states.items()}
    mean = sum(own.values()) / len(own)
    each = {f"server_accuracy_{name}": x for name, x in own.items()} if len(own) > 1 else {}
    return {"accuracy": mean, "server_accuracy": mean, **each}


def disagreement(member_logits):
    """Share of (pair of members, sample) whose predicted classes differ, a float in [0, 1]; None for a single member. [M, N, C]"""
    predicted = member_logits.argmax(-1)                                                 # [M, N]
    pairs = list(itertools.combinations(predicted, 2))
    return sum((a != b).float().mean().item() for a, b in pairs) / len(pairs) if pairs else None


def test_accuracies(fed, model):
    """(accuracy on the test set, on the public test set): floats in [0, 1]; the second is None where there is no such set."""
    return tuple(data and accuracy(predict_logits(fed, model, data.images), data.labels) for data in (fed.test, fed.public_test))


def client_metrics(scores, key="client_accuracy"):
    """The mean, the least and the largest of the clients' test accuracies; scores: the `test_accuracies` of each client."""
    own, public = zip(*scores)
    mean_public = {} if None in public else {f"{key}_public_test": sum(public) / len(public)}
    return {key: sum(own) / len(own), f"{key}_min": min(own), f"{key}_max": max(own), **mean_public}


def large_server_metrics(score):
    """The accuracy of a server's own model, where there is a public test set on that, as in FedGEMS; score: `test_accuracies`."""
    own, public = score
    return {"server_accuracy": own} if public is None else {"server_accuracy": public, "server_accuracy_private_test": own}


Optimizer = Literal["sgd", "nesterov", "adam", "amsgrad"]
OPTIMIZERS = {"sgd": torch.optim.SGD, "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
              "adam": torch.optim.Adam, "amsgrad": partial(torch.optim.Adam, amsgrad=True)}


def seconds(device):
    """A wall clock in seconds that waits for the work already given to a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


# ---------------------------------------------------------------------------------------------------------------------
# Training where models and optimisers live through the rounds: what exchanges logits or nothing

def new_learner(model):
    """A model that has not been trained yet, as it is kept between rounds."""
    return {"model": copy.deepcopy(model.state_dict()), "optimizer": None}


def wake(learner, model, optimizer, lr, weight_decay):
    """The optimiser of `model`, both as the learner was left: learner["model"], learner["optimizer"] are their state_dicts."""
    model.load_state_dict(learner["model"])
    update = OPTIMIZERS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)
    if learner["optimizer"] is not None:
        update.load_state_dict(copy.deepcopy(learner["optimizer"]))      # else its steps would change the learner's tensors
    return update


def asleep(model, update):
    """What `wake` needs in a later round."""
    return {"model": copy.deepcopy(model.state_dict()), "optimizer": update.state_dict()}


def train(fed, model, update, images, loss, *, epochs, batch_size, keys):
    """`epochs` shuffled passes over images [n, c, h, w] with a step of `update` on each batch, in place.

    loss    loss(logits [B, C], rows [B]) -> scalar, rows being positions in `images`
    keys    name the purpose: the stream that shuffles and augments, and the seed of dropout
    """
    model.train()
    rng = stream(fed.seed, *keys)
    with seeded(fed.seed, *keys):
        for rows in batches(len(images), batch_size, epochs, rng, fed.device):           # rows: [B]
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            batch_loss = loss(forward(fed, model, batch), rows)
            update.zero_grad()
            batch_loss.backward()
            update.step()


def train_with_labels(fed, model, update, data, **settings):
    """`train` towards the labels: cross-entropy. settings: epochs, batch_size, keys."""
    train(fed, model, update, data.images, lambda logits, rows: F.cross_entropy(logits, data.labels[rows]), **settings)


@torch.no_grad()
def feature_map_of(fed):
    """The feature map [1, channels, h, w] of a private image, of one shape for all clients.

    ValueError: clients without one, or with others than the server can read.
    """
    for name, ids in by_architecture(fed).items():
        edge = fed.client_model(ids[0]).eval()
        if not hasattr(edge, "extract"):
            raise ValueError(f"--model {name} has no feature map to send: an edge network such as gkt_edge has")
        features = edge.extract(fed.private[0].images[:1])
        try:
            fed.server_model().eval()(features)
        except (RuntimeError, ValueError):
            raise ValueError(f"the server's network cannot read the {list(features.shape[1:])} feature maps of {name}: "
                             "gkt_server55 and gkt_server109 go with gkt_edge..., gkt_server_small with gkt_edge_small") from None
    return features


def soft_cross_entropy(logits, target_probs):
    """- sum_c y[n,c] ln q[n,c] per sample, q = softmax(logits): float [N], from [N, C] and [N, C]; no gradient to the target.

    >>> soft_cross_entropy(torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]))
    tensor([0.6931])
    """
    return -(target_probs.detach() * F.log_softmax(logits, dim=-1)).sum(-1)


# ---------------------------------------------------------------------------------------------------------------------
# Distillation and averaging

def kl_divergence(teacher_logits, student_logits, temperature=1.0):
    """KL(teacher || student) per sample, both softened by `temperature`; in nats, without the factor temperature².

        KL[n] = sum_c p[n,c] (ln p[n,c] - ln q[n,c]),    p = softmax(teacher / T),  q = softmax(student / T)

    teacher_logits, student_logits   float [N, C]
    returns                          float [N]; no gradient flows to the teacher
    source                           Hinton, Vinyals, Dean (2015); FedGKT Eq. (6)-(7)
    >>> kl_divergence(torch.tensor([[.8, .2]]).log(), torch.tensor([[.5, .5]]).log())
    tensor([0.1927])
    """
    teacher_log_probs = F.log_softmax(teacher_logits.detach() / temperature, dim=-1)
    student_log_probs = F.log_softmax(student_logits / temperature, dim=-1)
    return (teacher_log_probs.exp() * (teacher_log_probs - student_log_probs)).sum(-1)


def distillation_loss(teacher_logits, student_logits, temperature=1.0):
    """temperature² times the mean over the samples of KL(teacher || student): a scalar.   FedSDD Eq. (4); Hinton et al. (2015)

    T² keeps the size of the gradient when the temperature changes. Needs `kl_divergence`.
    """
    return temperature**2 * kl_divergence(teacher_logits, student_logits, temperature).mean()


def average_weights(state_dicts, weights):
    """The weighted average of models of one architecture, as a state_dict.   FedSDD Eq. (2)

    state_dicts   list of M state_dicts with the same keys
    weights       M numbers >= 0, normalised here to sum to 1 (sample counts, say)
    returns       a new state_dict; floating-point entries (BatchNorm's running statistics too) are averaged, integer ones
                  (BatchNorm's counters) take the maximum and keep their dtype
    raises        ValueError: no models, another number of weights, a negative or non-finite weight, weights that sum to 0
    """
    weights = [float(w) for w in weights]
    if not state_dicts or len(state_dicts) != len(weights):
        raise ValueError(f"needs models and a weight for each, not {len(state_dicts)} models and {len(weights)} weights")
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
