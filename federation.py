"""What every algorithm stands on: an algorithm is its file in algorithms/ and this one. Copy the
two into a folder, and they run:

    fed = federation.from_tensors(private, test, [Network], public=(images, None))
    for metrics, state in fedsdd.run(fed, fedsdd.Config(rounds=10)):
        print(metrics["accuracy"])

`__all__` below lists what algorithms import, section by section.

An algorithm is a file with a Config, its settings, a generator `run`, and an `ALGORITHM` that says
what it needs. `run` yields (metrics, state) before the first round, as round 0, and after each
round. If it is given a state that it has yielded, it goes on with the next round, with the numbers
of a run without a stop.
  metrics    {name: a number, or None where there is none}. `accuracy` is the headline. `bytes_up`
             and `bytes_down` are the sums over the clients in this round, and `bad_uploads` is the
             number of clients whose uploads were left out
  state      a dict of everything that a later round needs: "algorithm", the name in ALGORITHM;
             "round"; and numbers, tensors, lists, dicts. Trained models are state_dicts: the
             server's in "server", {"model": ...}, those of clients in "clients", {i: {"model":
             ...}}, several global ones in "global_models". Nobody changes a state once yielded
  cfg        the caller may lower a learning rate in it between two rounds
  attack     an Attack of attacks.py, whose functions replace the uploads of malicious clients:
             `poison_weights` in {client: state_dict}, `poison_rows` in {client: [n, ...]} of the
             same n samples, `poison_samples` in {client: [n_i, ...]} of each client's own samples
  parallel   a client's work in parallel_map may be done by another process: it returns tensors, and
             changes nothing outside. The server's work stands under @on_server; without it each
             process would train the server's model anew
  streams    random numbers are named by their purpose: "active", t for the clients of round t;
             "local", t, i for client i's training; "distil", t, k for the distillation of model k;
             "view", t for the crops of the public images; "init", k and "server init", k for the
             k-th random weights. An algorithm adds its own, as FedSDD "groups", t

This is FedAvg:

    from dataclasses import dataclass
    import torch
    import torch.nn.functional as F
    from federation import *

    @dataclass
    class Config(Settings):
        rounds: Natural = 20                 # an int, 0 or more; section 7 has more of these types
        participation: Share = 0.4           # a float in (0, 1]
        lr: Positive = 0.1

    def run(fed, cfg, state=None, attack=None):
        ALGORITHM.check(fed, cfg, state, attack)
        if state is None:
            state = {"algorithm": "mine", "round": 0,
                     "server": {"model": fed.global_model().state_dict()}}
            yield score_global(fed, state), state
        weights = state["server"]["model"]
        for t in range(state["round"] + 1, cfg.rounds + 1):
            active = fed.sample_clients(cfg.participation, t)
            trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, weights))
            uploads = attack.poison_weights(trained) if attack else trained
            uploads = drop_bad_uploads(uploads)                  # {client: state_dict}
            if uploads:
                sizes = [len(fed.private[i].labels) for i in uploads]
                weights = average_weights([*uploads.values()], sizes)
            state = {**state, "round": t, "server": {"model": weights}}
            yield {**score_global(fed, state), "bad_uploads": len(active) - len(uploads),
                   **count_weight_bytes([(fed.global_model(), len(active))])}, state

    def train_client(fed, cfg, t, i, weights):
        images, labels = fed.private[i]
        model = fed.client_model(i)
        model.load_state_dict(weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
        model.train()
        with fed.random_numbers("local", t, i) as rng:
            for rows in minibatches(images, 32, rng, epochs=5):
                logits = model(fed.augment(images[rows], rng))
                loss = F.cross_entropy(logits, labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return model.state_dict()

    ALGORITHM = Algorithm("mine", run, Config)
"""
import contextlib
import copy
import io
import itertools
import math
import typing
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from numbers import Integral, Real
from statistics import fmean
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = [
    "make_rng", "seed_torch",                                                                    # 1
    "Data", "Federation", "from_tensors", "new_network", "in_bfloat16", "draw_clients",          # 2
    "minibatches", "OPTIMIZERS", "snapshot", "resume",                                           # 3
    "HUGE", "is_usable", "drop_bad_uploads", "average_weights",                                  # 4
    "predict", "predict_models", "predict_clients", "accuracy", "is_correct", "own_accuracy",    # 5
    "mean_of", "disagreement", "score_clients", "score_personal", "score_global", "score_server",
    "FLOAT_BYTES", "INDEX_BYTES", "count_weight_bytes", "count_logit_bytes",                     # 6
    "Settings", "Natural", "Count", "NonNegative", "Positive", "Share", "Fraction",              # 7
    "Optimizer", "Algorithm", "checked",
    "parallel_map", "on_server"]                                                                 # 8

# --------------------------------------------------------------------------------------------------
# 1  Random numbers. Each purpose has a stream of its own, named by a seed and words such as
# "local", t, i; so no number depends on what is computed before it, or by which process.

def seed_sequence(seed, name):
    words = [zlib.crc32(word.encode()) if isinstance(word, str) else int(word) for word in name]
    return np.random.SeedSequence(seed, spawn_key=words)


def make_rng(seed, *name):
    """A numpy Generator: the same name gives the same numbers, and another name gives others."""
    return np.random.default_rng(seed_sequence(seed, name))


@contextlib.contextmanager
def seed_torch(seed, *name):
    """`with seed_torch(0, "local", t, i) as rng:` seeds torch, which draws weights and dropout, by
    this name, and restores its state at the end. `rng` is the numpy Generator of the name."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    number = int(seed_sequence(seed, name).generate_state(1, np.uint64)[0])
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(number)      # faster than torch.manual_seed on a CPU
        if gpus:
            torch.cuda.manual_seed_all(number)
        yield make_rng(seed, *name)


# --------------------------------------------------------------------------------------------------
# 2  The federation: who has which images, and which networks

class Data(NamedTuple):
    images: Tensor         # float32 [n, c, h, w], normalized, channels-last
    labels: Tensor | None  # int64 [n]; None: the algorithm must not use them


def as_they_are(images, rng):
    return images


@dataclass(repr=False)
class Federation:
    """The input of every algorithm, which changes nothing in it."""

    private: list[Data]                 # private[i]: the samples of client i
    test: Data
    num_classes: int
    client_model: Callable              # client_model(i, init=0) makes a new network of client
    #                                     i's architecture; `init` numbers its random weights
    architecture: list[str]             # architecture[i]: the name of client i's network
    seed: int
    device: torch.device                # all tensors are on it
    server_model: Callable | None = None     # server_model(init=0) makes a new one of the server
    public: Data | None = None
    public_test: Data | None = None     # test images like the public ones: their half of the test
    #                                     set, or with FedMD's joint layer those of the public task
    num_public_classes: int = 0         # with FedMD's joint layer: the first so many outputs are
    #                                     for the classes of the public images
    validation: Data | None = None      # images that no client holds
    augment: Callable = as_they_are     # augment(images, rng): crops and flips images
    #                                     [B, c, h, w] at random, if the run is augmented
    amp: bool = False                   # True: networks compute in bfloat16, see `new_network`
    threads: int | None = None          # torch's CPU threads while the server trains

    def global_model(self, init=0):
        """A new network of the one architecture that all clients have."""
        return self.client_model(0, init)

    def rng(self, *name):
        """The numpy Generator of a purpose: fed.rng("groups", t)."""
        return make_rng(self.seed, *name)

    def random_numbers(self, *name):
        """`with fed.random_numbers("local", t, i) as rng:` stands around every training: `rng`
        draws the order of the batches and the crops, and torch, seeded as well, dropout."""
        return seed_torch(self.seed, *name)

    def sample_clients(self, share, t):
        """The clients that are active in round t: sorted ids of a share of all, at least one."""
        return draw_clients(range(len(self.private)), share, self.rng("active", t))

    def clients_by_architecture(self):
        """{architecture: the ids of its clients}."""
        return {name: [i for i, other in enumerate(self.architecture) if other == name]
                for name in dict.fromkeys(self.architecture)}

    def sample_by_architecture(self, share, t):
        """{architecture: those of its clients that are active in round t}: the same share of
        each, at least one."""
        rng = self.rng("active", t)
        return {name: draw_clients(ids, share, rng)
                for name, ids in self.clients_by_architecture().items()}

    def augment_public(self, t):
        """The public images, augmented once for round t: teacher and student see the same."""
        return self.augment(self.public.images, self.rng("view", t))


def draw_clients(ids, share, rng):
    """Sorted random ids: a share of these, rounded, and at least one."""
    size = max(1, round(share * len(ids)))
    return [ids[j] for j in sorted(rng.choice(len(ids), size=size, replace=False))]


def from_tensors(private, test, networks, *, public=None, validation=None, server_network=None,
                 seed=0, device="cpu", augment=as_they_are, amp=False):
    """A `Federation` of your own tensors (or numpy arrays), which it copies, and networks.

    private           [(images, labels), ...] of each client: floats [n, c, h, w], normalized, and
                      whole numbers [n] from 0
    test, validation  (images, labels)
    networks          [Network, ...]: Network() is a new nn.Module, images -> logits [B, C]; client
                      i uses networks[i % len(networks)]. Images come channels-last: `flatten` or
                      `reshape` them, as `view` fails
    public            (images, labels), or (images, None) where no algorithm needs labels
    server_network    Network of a server with a model of its own: for FedGEMS it reads images, for
                      FedGKT feature maps
    augment, amp      see `Federation`
    raises            ValueError: images, labels or networks are not as said; what a network itself
                      raises comes through
    """
    if not (isinstance(networks, (list, tuple)) and networks and private):
        raise ValueError("private and networks are lists of at least one, [Network]")
    device = torch.device(device)
    test_images = image_tensor("test", test[0], device)
    for make in networks:
        check_network("networks", make, seed)
    if server_network is not None:
        check_network("server_network", server_network, seed)

    def client_model(i, init=0):
        return new_network(networks[i % len(networks)], seed, "init", init, device=device, amp=amp)

    def server_model(init=0):
        return new_network(server_network, seed, "server init", init, device=device, amp=amp)

    one = test_images[:1]
    with torch.no_grad():
        logits = [client_model(j).eval()(one.clone()) for j in range(len(networks))]
    shapes = [tuple(getattr(x, "shape", ())) for x in logits]
    num_classes = (0, *shapes[0])[-1]                    # a tuple, for example, has no shape
    if {*shapes} != {(1, num_classes)}:
        raise ValueError(f"networks: logits are [B, C], with the same C, but of one image they are "
                         f"{', '.join(str([*shape]) for shape in shapes)}")

    def data(name, part):
        images = image_tensor(name, part[0], device)
        if images.shape[1:] != test_images.shape[1:]:
            raise ValueError(f"{name}: images are {[*images.shape[1:]]}, test images "
                             f"{[*test_images.shape[1:]]}")
        if part[1] is None and name == "public":
            return Data(images, None)
        return Data(images, label_tensor(name, part[1], len(images), num_classes, device))

    return Federation(
        private=[data(f"client {i}", part) for i, part in enumerate(private)],
        test=data("test", test), num_classes=num_classes,
        public=None if public is None else data("public", public),
        validation=None if validation is None else data("validation", validation),
        client_model=client_model, server_model=server_model if server_network else None,
        architecture=[f"network {i % len(networks)}" for i in range(len(private))],
        seed=seed, device=device, augment=augment, amp=amp)


def image_tensor(name, given, device):
    """A copy of images [n, c, h, w], float32, channels-last. Raises ValueError if they are not."""
    given = torch.as_tensor(given)
    if not given.is_floating_point() or given.ndim != 4 or len(given) == 0:
        raise ValueError(f"{name}: images are floats [n, c, h, w], normalized, n > 0, not "
                         f"{given.dtype} {[*given.shape]}")
    images = given.to(device, torch.float32, copy=True, memory_format=torch.channels_last)
    if not images.isfinite().all():
        raise ValueError(f"{name}: images are not finite in float32")
    return images


def label_tensor(name, given, n, num_classes, device):
    """A copy of labels, int64 [n]. Raises ValueError unless they are whole numbers of classes."""
    if given is None:
        raise ValueError(f"{name}: only public images may have no labels")
    given = torch.as_tensor(given).to(device)
    labels = given.to(torch.int64, copy=True)
    if given.shape != (n,) or (labels != given).any() or labels.min() < 0 or (
            labels.max() >= num_classes):
        raise ValueError(f"{name}: labels are whole numbers [{n}] from 0 to {num_classes - 1}, as "
                         f"the network has {num_classes} outputs")
    return labels


def check_network(name, make, seed):
    """Raises ValueError unless make() is a new network in each call, of finite float32 numbers."""
    with seed_torch(seed, "try"):                        # the caller's random numbers stay
        if isinstance(make, nn.Module):
            raise ValueError(f"{name}: give the class of a network, not a network")
        model = make()
        if model is make():
            raise ValueError(f"{name}: give a function that makes a new network in each call")
    for key, w in model.state_dict().items():
        if w.is_floating_point() and not (w.dtype == torch.float32 and w.isfinite().all()):
            raise ValueError(f"{name}: {key} is not of finite float32 numbers")


def new_network(make, seed, *name, device, amp=False):
    """make() on a device, channels-last, with the random weights that the name gives.

    amp    it computes in bfloat16; its weights and its logits stay float32. Do not deepcopy it: the
           copy would compute with this one's weights
    """
    with seed_torch(seed, *name):
        model = make().to(device, memory_format=torch.channels_last)
    if amp:
        model.forward = in_bfloat16(model.forward)
    return model


def in_bfloat16(function):
    """function(tensor), as a network's `forward`, computed in bfloat16; it returns float32."""
    def wrapper(inputs):
        # Without the cache: inside a caller's own autocast it would keep the first batch's weights.
        with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):
            return function(inputs).float()

    return wrapper


# --------------------------------------------------------------------------------------------------
# 3  Training. A network whose optimizer goes on in later rounds is kept as a snapshot.

def minibatches(images, batch_size, rng, epochs=None, steps=None):
    """Yields the row numbers of each batch, int64 [B]: in an epoch each image once, in a new order.

    epochs    how many passes over the images, unless `steps` is given
    steps     how many batches, in as many epochs as they need
    The last batch of an epoch may be smaller. One of a single image has it twice, since BatchNorm
    in train mode needs two values of a feature.
    """
    made = 0
    for _ in range(epochs) if steps is None else itertools.count():
        order = torch.from_numpy(rng.permutation(len(images))).to(images.device)
        for rows in order.split(batch_size):
            if made == steps:
                return
            yield rows if len(rows) > 1 else rows.repeat(2)
            made += 1


OPTIMIZERS = {"sgd": torch.optim.SGD, "momentum": partial(torch.optim.SGD, momentum=0.9),
              "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
              "adam": torch.optim.Adam, "amsgrad": partial(torch.optim.Adam, amsgrad=True),
              "adamw": torch.optim.AdamW}
OPTIMIZER_KEYS = ("momentum", "nesterov", "amsgrad", "decoupled_weight_decay")    # tell them apart


def snapshot(model, optimizer=None):
    """{"model": state_dict, "optimizer": state_dict or None}: copies, to be kept between rounds."""
    return {"model": {name: w.clone() for name, w in model.state_dict().items()},
            "optimizer": None if optimizer is None else copy.deepcopy(optimizer.state_dict())}


def resume(saved, model, name, lr, weight_decay=0.0):
    """(model, its optimizer): the network and an optimizer, as they were in a snapshot.

    name      of the optimizer, in OPTIMIZERS. It is new if the snapshot has none; its learning rate
              and weight decay are always those that are given here
    raises    ValueError: the snapshot has the state of another optimizer
    """
    model.load_state_dict(saved["model"])
    optimizer = OPTIMIZERS[name](model.parameters(), lr=lr, weight_decay=weight_decay)
    if saved["optimizer"] is not None:
        new, old = optimizer.param_groups[0], saved["optimizer"]["param_groups"][0]
        if any(new.get(key) != old.get(key) for key in OPTIMIZER_KEYS):
            raise ValueError(f"the snapshot is of another optimizer than {name}")
        state = copy.deepcopy(saved["optimizer"]["state"])       # steps change it in place
        for numbers in state.values():
            if isinstance(numbers.get("step"), Tensor):
                numbers["step"] = numbers["step"].cpu()          # on a GPU, Adam would wait for it
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    return model, optimizer


# --------------------------------------------------------------------------------------------------
# 4  Uploads, and their average

HUGE = 1e30    # float32 ends at 3e38: sums of such numbers, or quotients by a small temperature,
#                would overflow


def is_usable(upload):
    """False if a number in an upload is nan, infinite, or 1e30 or more in magnitude. An upload is a
    tensor, or a dict or tuple of uploads."""
    if isinstance(upload, Tensor):
        return not upload.is_floating_point() or bool((upload.abs() < HUGE).all())
    return all(map(is_usable, upload.values() if isinstance(upload, dict) else upload))


def drop_bad_uploads(uploads):
    """{client: upload}, those that are usable."""
    return {i: upload for i, upload in uploads.items() if is_usable(upload)}


def average_weights(state_dicts, sizes):
    """The average of M state_dicts of one architecture, weighted by M `sizes`.   FedSDD Eq. (2)

    `sizes` is a list. BatchNorm's running statistics are averaged, too; integers, its counters,
    take the maximum. All tensors are new.
    """
    total, average = sum(sizes), {}
    shares = [size / total for size in sizes]
    for name, first in state_dicts[0].items():
        values = [weights[name] for weights in state_dicts]
        if first.is_floating_point():
            average[name] = sum(share * value
                                for share, value in zip(shares, values, strict=True))
        else:
            average[name] = torch.stack(values).amax(0)
    return average


# --------------------------------------------------------------------------------------------------
# 5  Prediction and accuracy. All predict in eval mode, without gradient.

@torch.no_grad()
def predict(model, images):
    """Logits, float32 [N, C], of images [N, c, h, w]. A model in train mode returns to it."""
    was_training = model.training
    model.eval()
    if len(images) == 0:                                 # FedGEMS may ask clients for none
        logits = model(images.new_zeros(1, *images.shape[1:]))[:0]
    else:
        logits = torch.cat([model(batch.clone())         # a network may change its input in place
                            for batch in images.split(prediction_batch(images))])
    model.train(was_training)
    return logits


def prediction_batch(images):
    """How many images are predicted at once: on a CPU few, so that their maps fit into memory that
    training has freed; on a GPU more, since starting its kernels takes time."""
    return 64 if images.device.type == "cpu" else 500


def predict_models(fed, state_dicts, images, new_model=None):
    """Logits, float32 [M, N, C], of M state_dicts of fed.global_model() or new_model(); all
    processes compute a part."""
    def load(m):
        network = (new_model or fed.global_model)()
        network.load_state_dict(state_dicts[m])
        return network

    if len(state_dicts) == 1:                                 # each process predicts some batches
        network, parts = load(0), images.split(prediction_batch(images))
        logits = parallel_map(fed, range(len(parts)), lambda j: predict(network, parts[j]))
        return torch.cat([*logits.values()])[None]
    logits = parallel_map(fed, range(len(state_dicts)), lambda m: predict(load(m), images))
    return torch.stack([*logits.values()])


def is_correct(logits, labels):
    """True where the largest logit is the label's, and all are finite: [N, C], [N] -> bool [N].
    Labels [N, 1] are taken as [N]."""
    answers = logits.argmax(-1)
    return (answers == labels.view_as(answers)) & logits.isfinite().all(-1)


def accuracy(logits, labels):
    """Share of the samples that are right: [N, C], [N] -> float in [0, 1]."""
    return int(is_correct(logits, labels).sum()) / len(labels)


def own_accuracy(logits, labels, own_labels):
    """The accuracy on a client's own classes: the mean of the accuracies on each class, weighted by
    the client's numbers of images of it.

    logits, labels    of the test images, [N, C] and [N]
    own_labels        of the client's images, int64 [n]; classes without test images are left out
    returns           a float in [0, 1]; None: no class of the client has test images
    >>> logits = torch.tensor([[1., 0.], [0., 1.], [0., 1.]])        # right, right, wrong
    >>> own_accuracy(logits, torch.tensor([0, 1, 0]), own_labels=torch.tensor([0, 1, 1, 1]))
    0.875
    """
    def count(answers):                                                      # of each class, [C]
        return answers.bincount(minlength=logits.shape[1]).double()

    own, tested, right = map(count, (own_labels, labels, labels[is_correct(logits, labels)]))
    own[tested == 0] = 0
    if own.sum() == 0:
        return None
    return float((own * right / tested.clamp(min=1)).sum() / own.sum())


def mean_of(values):
    """The mean of the values that are not None; None if there is none."""
    known = [x for x in values if x is not None]
    return fmean(known) if known else None


def disagreement(member_logits):
    """The share of images of which two models predict different classes, the mean over all pairs
    of models.

    member_logits    [M, N, C]
    returns          a float in [0, 1]; None if M is 1
    """
    pairs = [*itertools.combinations(member_logits.argmax(-1), 2)]           # of int64 [N]
    return mean_of(int((a != b).sum()) / len(a) for a, b in pairs)


def predict_clients(fed, clients, images):
    """{i: logits, float32 [N, C]} of the networks of these clients, {i: snapshot}."""
    def predict_client(i):
        model = fed.client_model(i)
        model.load_state_dict(clients[i]["model"])
        return predict(model, images)

    return parallel_map(fed, clients, predict_client)


def score_clients(fed, clients, key="client_accuracy", each=False):
    """Accuracies of the networks of all these clients, {i: snapshot}, also of untrained ones:

    key, key_min, key_max    mean, minimum and maximum over the clients, on fed.test
    key_own                  the mean of `own_accuracy`, over the clients that have one
    key_public_test          the mean on fed.public_test, if there are such images
    key_as_public            with FedMD's joint layer: the share of all answers on fed.test that
                             are a public class
    key_i                    with `each`: the accuracy of client i
    """
    logits, labels = predict_clients(fed, clients, fed.test.images), fed.test.labels     # [N, C]
    accuracies = {i: accuracy(of_i, labels) for i, of_i in logits.items()}
    metrics = {
        key: fmean(accuracies.values()),
        f"{key}_min": min(accuracies.values()), f"{key}_max": max(accuracies.values()),
        f"{key}_own": mean_of(own_accuracy(logits[i], labels, fed.private[i].labels)
                              for i in logits)}
    if fed.public_test is not None:
        on_public = predict_clients(fed, clients, fed.public_test.images)
        metrics[f"{key}_public_test"] = fmean(
            accuracy(of_i, fed.public_test.labels) for of_i in on_public.values())
    if fed.num_public_classes > 0:
        metrics[f"{key}_as_public"] = fmean(
            int((of_i.argmax(-1) < fed.num_public_classes).sum()) / len(of_i)
            for of_i in logits.values())
    if each:
        metrics |= {f"{key}_{i}": x for i, x in accuracies.items()}
    return metrics


def score_personal(fed, clients):
    """`score_clients` of models that stay with their clients: `accuracy` is the mean of
    `own_accuracy`."""
    metrics = score_clients(fed, clients)
    return {"accuracy": metrics.pop("client_accuracy_own"), **metrics}


def score_global(fed, state):
    """{"accuracy": the test accuracy of the one global model, state["server"]["model"]}."""
    logits = predict_models(fed, [state["server"]["model"]], fed.test.images)[0]         # [N, C]
    return {"accuracy": accuracy(logits, fed.test.labels)}


def score_server(fed, server):
    """{"server_accuracy"} of the server's own network, a snapshot, on fed.test.

    Where there is a public half of the test images, fed.public_test, it is on that half, as in
    FedGEMS; on fed.test, the other half, it is "server_accuracy_private_test".
    """
    def test(data):
        logits = predict_models(fed, [server["model"]], data.images, fed.server_model)[0]
        return accuracy(logits, data.labels)

    if fed.public_test is None:
        return {"server_accuracy": test(fed.test)}
    return {"server_accuracy": test(fed.public_test),
            "server_accuracy_private_test": test(fed.test)}


# --------------------------------------------------------------------------------------------------
# 6  Bytes over the wire, by the papers' formulas: a number is a float32. The papers do not count
# BatchNorm's buffers and row numbers of images: they have keys of their own.

FLOAT_BYTES = INDEX_BYTES = 4


def count_weight_bytes(messages, number_bytes=FLOAT_BYTES):
    """The bytes of a round in which clients receive the weights of a network and send them back.

    messages        [(network, number of such clients), ...]
    number_bytes    of a number; the masked ones of a secure sum have 8
    """
    weights = number_bytes * sum(n * w.numel() for model, n in messages for w in model.parameters())
    buffers = sum(n * w.numel() * max(number_bytes, w.element_size())      # a counter has 8 bytes
                  for model, n in messages
                  for name, w in model.named_buffers() if name in model.state_dict())
    return {"bytes_up": weights, "bytes_up_buffers": buffers,
            "bytes_down": weights, "bytes_down_buffers": buffers}


def count_logit_bytes(num_clients, num_classes, up, down, indices=0):
    """The bytes of a round in which each client sends the logits, or probabilities, of `up` samples
    and receives those of `down` samples, and `indices` row numbers."""
    return {"bytes_up": FLOAT_BYTES * up * num_classes * num_clients,
            "bytes_down": FLOAT_BYTES * down * num_classes * num_clients,
            "bytes_down_indices": INDEX_BYTES * indices * num_clients}


# --------------------------------------------------------------------------------------------------
# 7  Settings, and the declaration of an algorithm. A number's type has the interval in which its
# values lie; plain `int` and `float` take every number.

Natural = Annotated[int, "[0, 1e9]"]
Count = Annotated[int, "[1, 1e9]"]
NonNegative = Annotated[float, "[0, inf)"]
Positive = Annotated[float, "(0, inf)"]
Share = Annotated[float, "(0, 1]"]
Fraction = Annotated[float, "[0, 1]"]
Optimizer = Literal[tuple(OPTIMIZERS)]


class Settings:
    """The base of each algorithm's Config, a dataclass; its values are checked when one is made."""

    def __post_init__(self):
        for name, kind in typing.get_type_hints(type(self), include_extras=True).items():
            setattr(self, name, checked(name, getattr(self, name), kind))


def checked(name, value, kind):
    """The value of a setting. Raises ValueError, which begins with its name, if it does not fit its
    type."""
    if isinstance(value, np.generic):
        value = value.item()
    if not fits(value, kind):
        raise ValueError(f"{name} is {value!r}: {words_for(kind)}")
    return value


def fits(value, kind):
    """isinstance(value, kind), also for Annotated[float, "(0, 1]"], a Literal, tuple[kind, ...] and
    kind | None. An int is a float, a bool is not an int, a list is a tuple."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return fits(value, inside[0]) and is_in(value, inside[1])
    if origin is Literal:
        return value in inside
    if origin is tuple:
        return isinstance(value, (tuple, list)) and all(fits(x, inside[0]) for x in value)
    if inside:
        return any(fits(value, one) for one in inside)
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool) and abs(value) < math.inf
    return isinstance(value, kind)


def is_in(x, interval):
    """True for a number in an interval such as "[0, 0.5)", which has 0, but not 0.5."""
    low, high = map(float, interval[1:-1].split(","))
    above = x >= low if interval[0] == "[" else x > low
    below = x <= high if interval[-1] == "]" else x < high
    return above and below


def words_for(kind):
    """What a message says of a type: "it must be a number in (0, 1]", "choose from sgd, adam"."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return f"{words_for(inside[0])} in {inside[1]}"
    if origin is Literal:
        return f"choose from {', '.join(map(str, inside))}"
    if origin is tuple:
        return f"it must be a tuple or a list, of each value {words_for(inside[0])}"
    if inside:
        return words_for(inside[0])                                              # of X | None
    nouns = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
    return f"it must be {nouns.get(kind, kind)}"


@dataclass(frozen=True, eq=False)
class Algorithm:
    """The last lines of an algorithm's file: what it needs."""

    name: str                # as in its states, and on the command line
    run: Callable            # run(fed, cfg, state=None, attack=None) yields (metrics, state)
    Config: type             # the dataclass of its settings
    public: Literal["none", "unlabeled", "labeled", "joint"] = "none"    # the public images that it
    #                          sees; joint: also of another task, in one output layer, as in FedMD
    needs_for: Callable | None = None    # needs_for(cfg): what `needs` returns, if settings decide
    mixed_networks: bool = False     # may clients have different networks?
    server: Literal["none", "images", "features"] = "none"   # what a network of the server's reads
    check_more: Callable | None = None   # check_more(fed, cfg, state, attack) raises ValueError
    program: dict = field(default_factory=dict)  # what fedkd_minimal.py needs besides, see
    #                          algorithms/__init__.py

    def __post_init__(self):
        for name, kind in typing.get_type_hints(Algorithm).items():
            if typing.get_origin(kind) is Literal:
                checked(f"{self.name}: {name}", getattr(self, name), kind)

    def needs(self, cfg):
        """What it cannot do without: a set of "public" (images), "labels" (of these images) and
        "validation" (images)."""
        if self.needs_for:
            return {*self.needs_for(cfg)}
        return {"none": set(), "unlabeled": {"public"}, "labeled": {"public", "labels"},
                "joint": {"public", "labels"}}[self.public]

    def check(self, fed, cfg, state=None, attack=None):
        """Raises ValueError if it cannot run on this federation with these settings, or go on from
        this state. `run` begins with it; the program calls it before it computes anything."""
        if not isinstance(cfg, self.Config):
            raise ValueError(f"{self.name}: the settings are of another algorithm, {type(cfg)}")
        if state is not None and state.get("algorithm") != self.name:
            raise ValueError(f"{self.name}: the state is of {state.get('algorithm')}")
        if not self.mixed_networks and len({*fed.architecture}) > 1:
            raise ValueError(f"{self.name}: every client needs the same network")
        needs = self.needs(cfg)
        if "public" in needs and fed.public is None:
            raise ValueError(f"{self.name} needs public images: from_tensors(..., public=)")
        if "labels" in needs and fed.public.labels is None:
            raise ValueError(f"{self.name} needs the labels of the public images")
        if "validation" in needs and fed.validation is None:
            raise ValueError(f"{self.name} needs validation images: from_tensors(..., validation=)")
        if self.server != "none" and fed.server_model is None:
            raise ValueError(f"{self.name} needs a network of the server: "
                             "from_tensors(..., server_network=)")
        if self.check_more:
            self.check_more(fed, cfg, state, attack)
        if self.server == "images":
            check_server(self.name, fed)


def check_server(name, fed):
    """Raises ValueError unless the server's network makes logits of images."""
    try:
        found = tuple(predict(fed.server_model(), fed.test.images[:1]).shape)
    except RuntimeError as error:            # torch's own, of shapes that do not fit
        found = error
    if found != (1, fed.num_classes):
        raise ValueError(f"{name}: the server's network does not make logits [B, "
                         f"{fed.num_classes}] of images {[*fed.test.images.shape[1:]]}: {found}")


# --------------------------------------------------------------------------------------------------
# 8  Several processes. All run the same lines; where these say parallel_map each computes a part.

def parallel_map(fed, ids, fn, threads=None, to_server=False):
    """The papers' "for each client i in parallel do": {i: fn(i) for i in ids}.

    Process r of P computes fn(ids[r]), fn(ids[r + P]), ...; then every process has all results.
    fn         returns tensors and numbers, also in tuples, lists and dicts. It changes nothing
               outside and does not call parallel_map. If it raises in one process, the others wait
               until they are ended; the program ends them
    threads    torch's CPU threads meanwhile; None: as many as before
    to_server  True: only the first process, the server, has the results, as they are large; the
               others have {}
    """
    ids = list(ids)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        results = {i: fn(i) for i in ids[rank::world]}
    finally:
        torch.set_num_threads(before)
    if world > 1:
        if to_server:
            results = send_to_first(fed, results)
        else:
            results = send_to_all(fed, results, senders=range(min(world, len(ids))))
    return {i: results[i] for i in ids if i in results}


def on_server(function):
    """Decorator of function(fed, ...): one process computes it, with the server's CPU threads, and
    all have the result. The function does not call parallel_map, nor predict_models or a `score_`
    function, which do."""
    @wraps(function)
    def wrapper(fed, *arguments, **keywords):
        return parallel_map(fed, [0], lambda _: function(fed, *arguments, **keywords),
                            threads=fed.threads)[0]
    return wrapper


def send_to_all(fed, own, senders):
    """The results {i: value} of all `senders`, in every process."""
    results = {}
    for source in senders:
        message = [pack(own)] if source == dist.get_rank() else [None]
        dist.broadcast_object_list(message, src=source)
        results |= unpack(message[0], fed.device)
    return results


def send_to_first(fed, own):
    """The results {i: value} of all processes, in the first one; {} in the others."""
    if dist.get_rank() > 0:
        dist.send_object_list([pack(own)], dst=0)
        return {}
    for source in range(1, dist.get_world_size()):
        message = [None]
        dist.recv_object_list(message, src=source)
        own = own | unpack(message[0], fed.device)
    return own


def pack(value):
    """The bytes of a value whose tensors may be on a GPU, to be unpacked on another one."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpack(message, device):
    # The sender is a process of this run; weights_only would refuse the NamedTuples in a message.
    return torch.load(io.BytesIO(message), map_location=device, weights_only=False)
