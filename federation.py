"""What every algorithm stands on: an algorithm is its file in algorithms/ and this one. Copy the
two into a folder, and they run:

    fed = federation.from_tensors(private, test, [Network], public=(images, None))
    for metrics, state in fedsdd.run(fed, fedsdd.Config(rounds=10)):
        print(metrics["accuracy"])

The sections below are: 1 random numbers, 2 the federation and how one is made of tensors,
3 settings and what an algorithm declares, 4 several processes, 5 training, 6 uploads and their
average, 7 prediction and accuracy, 8 bytes.

An algorithm of your own is a file with a `Config`, a generator `run` and an `ALGORITHM`. Here is
FedAvg:

    from dataclasses import dataclass
    import torch
    import torch.nn.functional as F
    from federation import *

    @dataclass
    class Config(Settings):
        rounds: int = 20
        participation: Share = 0.4           # a float in (0, 1]; `int` and `float` are 0 or more
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

`run` yields once before the first round, as round 0, and once after each round. Given a state that
it has yielded, it goes on with the next round, and makes the same numbers as without the stop.
  metrics    {name: a number, or None where there is none}. `accuracy` is the headline, `bytes_up`
             and `bytes_down` are those of all clients in the round, `bad_uploads` counts the
             clients that were left out
  state      all that a later round needs: numbers, tensors, state_dicts, lists, dicts. Trained
             models stand in `server` and `clients` ({i: snapshot}) or `global_models`. Neither
             `run` nor its caller changes a state once it is yielded
  cfg        a caller may lower a learning rate in it between two rounds
  attack     an Attack of attacks.py: `poison_weights` takes the uploads {client: state_dict},
             `poison_rows` {client: [n, ...]} of the same n samples, `poison_samples` those of each
             client's own samples; they return them with those of malicious clients replaced
  parallel   what a client computes in parallel_map is a function of its id; it returns tensors and
             changes nothing outside, as another process may compute it. What the server trains is
             a function under @on_server, or each process would train it for itself
  names      random numbers have a name of words and numbers: "active", t for the clients of round
             t; "local", t, i for client i's training; "view", t for the crops of public images;
             "init", k for the k-th random weights. No two purposes share a name
"""
import contextlib
import copy
import functools
import io
import itertools
import typing
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from statistics import fmean
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

# --------------------------------------------------------------------------------------------------
# 1  Random numbers. Each purpose has a stream of its own, named by a seed and words such as
# "local", t, i; so no number depends on what is computed before it, or by which process.

def seed_sequence(seed, name):
    words = [zlib.crc32(word.encode()) if isinstance(word, str) else int(word) for word in name]
    return np.random.SeedSequence(seed, spawn_key=words)


def make_rng(seed, *name):
    """A numpy Generator. The same name gives the same numbers, another name other ones."""
    return np.random.default_rng(seed_sequence(seed, name))


@contextlib.contextmanager
def seed_torch(seed, *name):
    """In this block torch draws new weights and dropout by this name; then it is as before. Yields
    the numpy Generator of the same name."""
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


@dataclass(repr=False)
class Federation:
    """The input of every algorithm. Nothing in it ever changes."""

    private: list[Data]                 # private[i]: the samples of client i
    test: Data
    num_classes: int
    client_model: Callable              # client_model(i, init=0): client i's new network, with the
    #                                     random weights number `init` of this seed
    architecture: list[str]             # architecture[i]: the name of client i's network
    seed: int
    device: torch.device                # all tensors are on it
    server_model: Callable | None = None     # server_model(init=0), likewise: the server's own
    public: Data | None = None
    public_test: Data | None = None     # the public half of the test images, if they are halved;
    #                                     with FedMD's joint layer, test images of the public task
    num_public_classes: int = 0         # FedMD's joint output layer has so many outputs for the
    #                                     classes of the public images, before those of the task
    validation: Data | None = None      # no client's: for early stopping, rates, drop_worst
    augment: Callable = lambda images, rng: images     # with --augment: crops and flips each of
    #                                     the images [B, c, h, w] at random
    amp: bool = False                   # networks compute in bfloat16: see `new_network`
    threads: int | None = None          # CPU threads while the server trains; None: as now

    def global_model(self, init=0):
        """A new network of the architecture that all clients have; see `client_model`."""
        return self.client_model(0, init)

    def rng(self, *name):
        """A numpy Generator for what is named: fed.rng("groups", t)."""
        return make_rng(self.seed, *name)

    def random_numbers(self, *name):
        """`with fed.random_numbers("local", t, i) as rng:` is around every training.

        rng, a numpy Generator, is for the order of batches and augmentation, torch's for dropout.
        """
        return seed_torch(self.seed, *name)

    def sample_clients(self, share, t):
        """Sorted ids of the clients that are active in round t: a share of all, at least one."""
        return draw_clients(range(len(self.private)), share, self.rng("active", t))

    def clients_by_architecture(self):
        """{architecture: its clients}, in the order of each architecture's first client."""
        return {name: [i for i, other in enumerate(self.architecture) if other == name]
                for name in dict.fromkeys(self.architecture)}

    def sample_by_architecture(self, share, t):
        """{architecture: its active clients of round t}: the same share of each architecture's."""
        rng = self.rng("active", t)
        return {name: draw_clients(ids, share, rng)
                for name, ids in self.clients_by_architecture().items()}

    def augment_public(self, t):
        """The public images as teacher and student see them in round t: with --augment cropped and
        flipped, once."""
        return self.augment(self.public.images, self.rng("view", t))


def draw_clients(ids, share, rng):
    """A share of these ids, rounded, at least one, drawn at random without replacement; sorted."""
    size = max(1, round(share * len(ids)))
    return [ids[j] for j in sorted(rng.choice(len(ids), size=size, replace=False))]


def from_tensors(private, test, networks, *, public=None, validation=None, server_network=None,
                 seed=0, device="cpu", **options):
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
    options           augment, amp: see `Federation`
    raises            ValueError: images, labels or networks are not as said; what a network itself
                      raises comes through
    """
    device = torch.device(device)
    if not networks or not private:
        raise ValueError("private and networks are lists of at least one")
    parts = {"test": test, **{f"client {i}": part for i, part in enumerate(private)}}
    parts |= {} if public is None else {"public": public}
    parts |= {} if validation is None else {"validation": validation}
    images = {}
    for name, (given, _) in parts.items():
        given = torch.as_tensor(given)
        fits = given.is_floating_point() and given.ndim == 4 and len(given) > 0
        if fits:
            images[name] = given.to(device, torch.float32, copy=True,
                                    memory_format=torch.channels_last)
            fits = (images[name].isfinite().all()
                    and given.shape[1:] == images["test"].shape[1:])
        if not fits:
            raise ValueError(f"{name}: images are finite floats [n, c, h, w], normalized, n > 0, "
                             f"and of one size, not {given.dtype} {[*given.shape]}")

    for make in [*networks] + ([server_network] if server_network else []):
        with seed_torch(seed, "try"):                    # the caller's random numbers stay
            if isinstance(make, nn.Module) or (model := make()) is make():
                raise ValueError("networks: give a class or function that makes a new network in "
                                 "each call")
        for name, w in model.state_dict().items():
            if w.is_floating_point() and not (w.dtype == torch.float32 and w.isfinite().all()):
                raise ValueError(f"networks: {name} is not of finite float32 numbers")

    def client_model(i, init=0):
        return new_network(networks[i % len(networks)], seed, "init", init, device=device,
                           amp=options.get("amp", False))

    def server_model(init=0):
        return new_network(server_network, seed, "server init", init, device=device,
                           amp=options.get("amp", False))

    shapes = [tuple(predict(client_model(j), images["test"][:1]).shape)
              for j in range(len(networks))]
    num_classes = shapes[0][-1]
    if {*shapes} != {(1, num_classes)}:
        raise ValueError(f"networks: all must give logits [B, C] with the same C, not of one image "
                         f"{', '.join(map(str, shapes))}")

    def data(name):
        if name not in parts:
            return None
        if name == "public" and parts[name][1] is None:
            return Data(images[name], None)
        if parts[name][1] is None:
            raise ValueError(f"{name}: only public images may have no labels")
        given, n = torch.as_tensor(parts[name][1]).to(device), len(images[name])
        labels = given.to(torch.int64, copy=True)
        if given.shape != (n,) or (labels != given).any() or labels.min() < 0 or (
                labels.max() >= num_classes):
            raise ValueError(f"{name}: labels are whole numbers [{n}] from 0 to {num_classes - 1}, "
                             f"as the network has {num_classes} outputs")
        return Data(images[name], labels)

    return Federation(
        private=[data(f"client {i}") for i in range(len(private))], test=data("test"),
        public=data("public"), validation=data("validation"), num_classes=num_classes,
        client_model=client_model, server_model=server_model if server_network else None,
        architecture=[f"network {i % len(networks)}" for i in range(len(private))],
        seed=seed, device=device, **options)


def new_network(make, seed, *name, device, amp=False):
    """The network of make(), on a device, channels-last, with the random weights of this name.

    amp    it computes in bfloat16; its weights, and the logits that it returns, are float32. Make
           another one instead of a deepcopy, which would compute with this one's weights
    """
    with seed_torch(seed, *name):
        model = make().to(device, memory_format=torch.channels_last)
    if amp:
        model.forward = in_bfloat16(model.forward)
    return model


def in_bfloat16(function):
    """A network's `forward`, or another function of one tensor, computed in bfloat16. It returns
    float32."""
    def wrapper(inputs):
        # Without the cache: inside a caller's own autocast it would keep the first batch's weights.
        with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):
            return function(inputs).float()

    return wrapper


# --------------------------------------------------------------------------------------------------
# 3  Settings, and the declaration of an algorithm. The type of a setting has the interval of its
# values; `int` and `float` alone are 0 or more.

Count = Annotated[int, "[1, 1e9]"]
Positive = Annotated[float, "(0, inf)"]
Share = Annotated[float, "(0, 1]"]
Fraction = Annotated[float, "[0, 1]"]
Optimizer = Literal["sgd", "momentum", "nesterov", "adam", "amsgrad"]


class Settings:
    """The base of each algorithm's Config, a dataclass; its values are checked when one is made."""

    def __post_init__(self):
        for name, kind in typing.get_type_hints(type(self), include_extras=True).items():
            setattr(self, name, checked(name, getattr(self, name), kind))


def checked(name, value, kind):
    """The value. Raises ValueError, which begins with the name, unless it is of this type.

    kind    bool, str, a Literal, int, float, or a tuple[bool, ...] and so on; a number, or a tuple
            of numbers, may be Annotated with its interval; or one of these | None
    """
    if isinstance(value, np.generic):
        value = value.item()
    interval = "[0, inf)"
    if type(None) in typing.get_args(kind):                  # X | None
        if value is None:
            return None
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is Annotated:
        kind, interval = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        if value not in typing.get_args(kind):
            raise ValueError(f"{name} is {value!r}: choose from {', '.join(typing.get_args(kind))}")
        return value
    is_tuple = typing.get_origin(kind) is tuple
    if is_tuple and not isinstance(value, (tuple, list)):
        raise ValueError(f"{name} is {value!r}: it must be a tuple or a list")
    kind = typing.get_args(kind)[0] if is_tuple else kind
    for x in value if is_tuple else [value]:
        if kind in (bool, str):
            if not isinstance(x, kind):
                noun = "True or False" if kind is bool else "a text"
                raise ValueError(f"{name} is {x!r}: it must be {noun}")
        elif (isinstance(x, bool) or not isinstance(x, Integral if kind is int else Real)
              or not is_in(x, interval)):
            noun = "whole number" if kind is int else "number"
            raise ValueError(f"{name} is {x!r}: it must be a {noun} in {interval}")
    return value


def is_in(x, interval):
    """True for a number in an interval such as "[0, 0.5)", which has 0, but not 0.5."""
    low, high = map(float, interval[1:-1].split(","))
    above = x >= low if interval[0] == "[" else x > low
    below = x <= high if interval[-1] == "]" else x < high
    return above and below


@dataclass(frozen=True, eq=False)
class Algorithm:
    """The last lines of an algorithm's file: what it needs."""

    name: str                # as in its states, and on the command line
    run: Callable            # run(fed, cfg, state=None, attack=None) yields (metrics, state)
    Config: type             # the dataclass of its settings
    public: Literal["none", "unlabeled", "labeled", "joint"] = "none"    # its public images;
    #                          joint: also of another task, in one output layer, as in FedMD
    public_for: tuple = ()       # it needs public images if one of these settings is on; without
    #                              such settings always, unless `public` is "none"
    labels_for: tuple = ()       # it needs their labels if one of these settings is above 0;
    #                              without such settings if `public` is "labeled" or "joint"
    validation_for: tuple = ()   # it needs validation images if one of these settings is on
    mixed_networks: bool = False     # may clients have different networks?
    server: Literal["none", "images", "features"] = "none"   # what a network of the server's reads
    check_more: Callable | None = None   # check_more(fed, cfg, state, attack) raises ValueError
    program: dict = field(default_factory=dict)  # for the program alone: algorithms/__init__.py

    def __post_init__(self):
        for name in ("public", "server"):
            checked(f"{self.name}: {name}", getattr(self, name),
                    typing.get_type_hints(Algorithm)[name])

    def needs_public(self, cfg):
        always = self.public != "none" and not self.public_for
        return always or any(getattr(cfg, name) not in (None, "none", False)
                             for name in self.public_for)

    def needs_labels(self, cfg):
        always = self.public in ("labeled", "joint") and not self.labels_for
        return self.needs_public(cfg) and (
            always or any(getattr(cfg, name) > 0 for name in self.labels_for))

    def needs_validation(self, cfg):
        return any(getattr(cfg, name) not in (None, False) for name in self.validation_for)

    def needs(self, cfg):
        """Those of "public", "labels" (of the public images), "validation" that it needs."""
        found = {"public": self.needs_public(cfg), "labels": self.needs_labels(cfg),
                 "validation": self.needs_validation(cfg)}
        return {name for name, is_needed in found.items() if is_needed}

    def check(self, fed, cfg, state=None, attack=None):
        """Raises ValueError if it cannot run on this federation with these settings, or go on from
        this state. `run` begins with it; the program calls it before it computes anything."""
        if state is not None and state.get("algorithm") != self.name:
            raise ValueError(f"{self.name}: the state is of {state.get('algorithm')}")
        if not self.mixed_networks and len({*fed.architecture}) > 1:
            raise ValueError(f"{self.name}: every client needs the same network")
        if self.needs_public(cfg) and fed.public is None:
            raise ValueError(f"{self.name} needs public images: from_tensors(..., public=)")
        if self.needs_labels(cfg) and fed.public.labels is None:
            raise ValueError(f"{self.name} needs the labels of the public images")
        if self.needs_validation(cfg) and fed.validation is None:
            raise ValueError(f"{self.name} needs validation images: from_tensors(..., validation=)")
        if self.server != "none" and fed.server_model is None:
            raise ValueError(f"{self.name} needs a network of the server: "
                             "from_tensors(..., server_network=)")
        if self.check_more:
            self.check_more(fed, cfg, state, attack)


# --------------------------------------------------------------------------------------------------
# 4  Several processes. All run the same lines; where these say parallel_map each computes a part.

def parallel_map(fed, ids, fn, threads=None, to_server=False):
    """The papers' "for each client i in parallel do": {i: fn(i) for i in ids}, by all processes.

    fn(i) returns tensors and numbers (in tuples, lists, dicts), changes nothing outside, and does
    not call parallel_map. Process r of P computes it for ids[r], ids[r + P], ...; then all
    processes have all results.
    threads      torch's CPU threads meanwhile; None: as they are
    to_server    results are large: only the first process, which is the server, has them, others {}
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
        results = send_to_first(fed, results) if to_server else send_to_all(
            fed, results, senders=range(min(world, len(ids))))
    return {i: results[i] for i in ids if i in results}


def on_server(function):
    """Decorator of function(fed, ...): one process computes it, with the server's CPU threads; all
    processes have the result. Inside it nothing calls parallel_map or predict_models."""
    @functools.wraps(function)
    def wrapper(fed, *arguments, **keywords):
        return parallel_map(fed, [0], lambda _: function(fed, *arguments, **keywords),
                            threads=fed.threads)[0]
    return wrapper


def send_to_all(fed, own, senders):
    results = {}
    for source in senders:
        message = [pack(own)] if source == dist.get_rank() else [None]
        dist.broadcast_object_list(message, src=source)
        results |= unpack(message[0], fed.device)
    return results


def send_to_first(fed, own):
    if dist.get_rank() > 0:
        dist.send_object_list([pack(own)], dst=0)
        return {}
    for source in range(1, dist.get_world_size()):
        message = [None]
        dist.recv_object_list(message, src=source)
        own = own | unpack(message[0], fed.device)
    return own


def pack(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpack(message, device):
    # The sender is a process of this run; weights_only would refuse the NamedTuples in a message.
    return torch.load(io.BytesIO(message), map_location=device, weights_only=False)


# --------------------------------------------------------------------------------------------------
# 5  Training. A network whose optimizer goes on in later rounds is kept as a snapshot.

def minibatches(images, batch_size, rng, epochs=None, steps=None):
    """Yields the rows, int64 [B], of each batch of `epochs` shuffled passes over the images; or, if
    `steps` is not None, of so many batches, in as many passes as they need.

    The last batch of a pass may be smaller. A batch of one image has it twice, as BatchNorm needs
    two values of each feature in train mode.
    """
    passes = range(epochs) if steps is None else itertools.count()
    orders = (torch.from_numpy(rng.permutation(len(images))).to(images.device) for _ in passes)
    batches = (rows for order in orders for rows in order.split(batch_size))
    for rows in itertools.islice(batches, steps):
        yield rows if len(rows) > 1 else rows.repeat(2)


OPTIMIZERS = {"sgd": torch.optim.SGD, "momentum": partial(torch.optim.SGD, momentum=0.9),
              "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
              "adam": torch.optim.Adam, "amsgrad": partial(torch.optim.Adam, amsgrad=True)}


def snapshot(model, optimizer=None):
    """{"model": state_dict, "optimizer": state_dict or None}: copies, to be kept between rounds."""
    return {"model": {name: w.clone() for name, w in model.state_dict().items()},
            "optimizer": None if optimizer is None else copy.deepcopy(optimizer.state_dict())}


def resume(saved, model, optimizer, lr, weight_decay=0.0):
    """(the network, its optimizer), after a copy of a snapshot into both.

    optimizer    its name in OPTIMIZERS; it is new if the snapshot has none. Learning rate and
                 weight decay are the ones given here
    raises       ValueError: the snapshot's optimizer is another one
    """
    model.load_state_dict(saved["model"])
    name, optimizer = optimizer, OPTIMIZERS[optimizer](model.parameters(), lr=lr,
                                                       weight_decay=weight_decay)
    if saved["optimizer"] is not None:
        new, old = optimizer.param_groups[0], saved["optimizer"]["param_groups"][0]
        if any(new.get(key) != old.get(key) for key in ("momentum", "nesterov", "amsgrad")):
            raise ValueError(f"the snapshot is of another optimizer than {name}")
        state = copy.deepcopy(saved["optimizer"]["state"])       # steps change it in place
        for numbers in state.values():
            if "step" in numbers:
                numbers["step"] = numbers["step"].cpu()          # on a GPU, Adam would wait for it
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    return model, optimizer


# --------------------------------------------------------------------------------------------------
# 6  Uploads, and their average

HUGE = 1e30    # float32 ends at 3e38: sums of such numbers, or quotients by a small temperature,
#                would overflow


def is_usable(upload):
    """False if a number of an upload, tensors or dicts or tuples of tensors, is nan, infinite, or
    1e30 or more in magnitude."""
    if isinstance(upload, Tensor):
        return not upload.is_floating_point() or bool((upload.abs() < HUGE).all())
    return all(map(is_usable, upload.values() if isinstance(upload, dict) else upload))


def drop_bad_uploads(uploads):
    """{client: upload} without the uploads that are not usable."""
    return {i: upload for i, upload in uploads.items() if is_usable(upload)}


def average_weights(models, sizes):
    """The average of M state_dicts of one architecture, weighted by M `sizes`.   FedSDD Eq. (2)

    BatchNorm's running statistics are averaged, too; integers, its counters, take the maximum.
    """
    shares = [size / sum(sizes) for size in sizes]
    average = {}
    for name, first in models[0].items():
        values = [model[name] for model in models]
        if first.is_floating_point():
            average[name] = sum(share * value for share, value in zip(shares, values))
        else:
            average[name] = torch.stack(values).amax(0)
    return average


# --------------------------------------------------------------------------------------------------
# 7  Prediction and accuracy. All predict in eval mode, without gradient.

@torch.no_grad()
def predict(model, images):
    """Logits, float32 [N, C], of images [N, c, h, w]. A model in train mode returns to it."""
    was_training = model.training
    model.eval()
    if len(images) == 0:
        logits = model(images.new_zeros(1, *images.shape[1:]))[:0]
    else:
        logits = torch.cat([model(batch) for batch in images.split(prediction_batch(images))])
    model.train(was_training)
    return logits


def prediction_batch(images):
    """How many images are predicted at once: on a CPU few, so that their maps fit into memory that
    training has freed; on a GPU more, since starting its kernels takes time."""
    return 64 if images.device.type == "cpu" else 500


def predict_models(fed, models, images, new_model=None):
    """Logits, float32 [M, N, C], of M state_dicts of fed.global_model(), or of new_model(), by all
    processes."""
    def load(m):
        network = (new_model or fed.global_model)()
        network.load_state_dict(models[m])
        return network

    if len(models) == 1:                                 # each process predicts some batches
        network, parts = load(0), images.split(prediction_batch(images))
        logits = parallel_map(fed, range(len(parts)), lambda j: predict(network, parts[j]))
        return torch.cat([*logits.values()])[None]
    logits = parallel_map(fed, range(len(models)), lambda m: predict(load(m), images))
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
    """`accuracy` on test images [N, C], [N], weighed as if classes had a client's own shares.

    own_labels    int64 [n]: of the client's images; a class without test images is left out
    returns       a float in [0, 1]; None: no class of the client has test images
    >>> logits = torch.tensor([[1., 0.], [0., 1.], [0., 1.]])        # right, right, wrong
    >>> own_accuracy(logits, torch.tensor([0, 1, 0]), own_labels=torch.tensor([0, 1, 1, 1]))
    0.875
    """
    right = labels[is_correct(logits, labels)]
    own, tested, right = (x.bincount(minlength=logits.shape[1]).double()     # images of each class
                          for x in (own_labels, labels, right))
    own[tested == 0] = 0
    if own.sum() == 0:
        return None
    return float((own * right / tested.clamp(min=1)).sum() / own.sum())


def mean_of(values):
    """The mean of those values that are not None; None, if all are."""
    known = [x for x in values if x is not None]
    return fmean(known) if known else None


def score_clients(fed, clients, key="client_accuracy", each=False):
    """Accuracies of the networks of all these clients, {i: snapshot}, also of untrained ones:

    key, key_min, key_max    mean, minimum and maximum over the clients, on fed.test
    key_own                  the mean of `own_accuracy`, over the clients that have one
    key_public_test          the mean on fed.public_test, if there are such images
    key_as_public            of a joint output layer: the mean share of the images of fed.test that
                             are answered with a public class
    key_i                    with `each`: the accuracy of client i
    """
    def test(i):
        model = fed.client_model(i)
        model.load_state_dict(clients[i]["model"])
        return score_network(fed, model, fed.private[i].labels)

    found = parallel_map(fed, clients, test)
    of_each = {f"{key}_{i}": of_client[""] for i, of_client in found.items()}
    return summarize([*found.values()], key) | (of_each if each else {})


def score_network(fed, model, own_labels=None):
    """What `score_clients` averages, of one network: {"": accuracy on fed.test, "_own": ...}.

    own_labels    int64 [n]: labels of the client whose images weigh in `_own`; None: there is no
                  `_own`
    """
    logits = predict(model, fed.test.images)                                             # [N, C]
    found = {"": accuracy(logits, fed.test.labels)}
    if fed.public_test is not None:
        images, labels = fed.public_test
        found["_public_test"] = accuracy(predict(model, images), labels)
    if fed.num_public_classes > 0:
        answers = logits.argmax(-1)
        found["_as_public"] = int((answers < fed.num_public_classes).sum()) / len(answers)
    if own_labels is not None:
        found["_own"] = own_accuracy(logits, fed.test.labels, own_labels)
    return found


def summarize(accuracies, key="client_accuracy"):
    """The metrics of `score_clients`, of the `score_network` of each client."""
    each = [of_client[""] for of_client in accuracies]
    return {key: fmean(each), f"{key}_min": min(each), f"{key}_max": max(each),
            **{key + ending: mean_of(of_client[ending] for of_client in accuracies)
               for ending in accuracies[0] if ending}}


def score_personal(fed, clients):
    """`score_clients`, with the mean of `own_accuracy` as `accuracy`: for models that stay with
    their clients."""
    found = score_clients(fed, clients)
    return {"accuracy": found.pop("client_accuracy_own"), **found}


def score_global(fed, state):
    """{"accuracy": the test accuracy of the one global model, state["server"]["model"]}."""
    logits = predict_models(fed, [state["server"]["model"]], fed.test.images)[0]         # [N, C]
    return {"accuracy": accuracy(logits, fed.test.labels)}


def disagreement(member_logits):
    """Share of images of which two models predict different classes, the mean over all pairs.

    member_logits    [M, N, C]
    returns          a float in [0, 1]; None if M is 1
    """
    pairs = [*itertools.combinations(member_logits.argmax(-1), 2)]           # of int64 [N]
    return mean_of(int((a != b).sum()) / len(a) for a, b in pairs)


def score_server(fed, server):
    """{"server_accuracy": of the server's own network, a snapshot, on fed.test}. Where half of the
    test images is public (fed.public_test) it is on this half, as in FedGEMS, and
    "server_accuracy_private_test" on fed.test, the other half."""
    def test(data):
        logits = predict_models(fed, [server["model"]], data.images, fed.server_model)[0]
        return accuracy(logits, data.labels)

    if fed.public_test is None:
        return {"server_accuracy": test(fed.test)}
    return {"server_accuracy": test(fed.public_test),
            "server_accuracy_private_test": test(fed.test)}


# --------------------------------------------------------------------------------------------------
# 8  Bytes over the wire, by the papers' formulas: a number is a float32. The papers do not count
# BatchNorm's buffers and row numbers of images: they have keys of their own.

FLOAT_BYTES = INDEX_BYTES = 4


def count_weight_bytes(messages, copies=1, up_number_bytes=FLOAT_BYTES):
    """{"bytes_up": ..., ...} of a round in which clients receive and send the weights of networks.

    messages           [(network, number of clients that received one and sent one), ...]
    copies             2 for SCAFFOLD's weights and control variate; buffers are sent once
    up_number_bytes    8 for the masked numbers of a secure sum
    """
    def weights(size):
        return sum(size * copies * n * sum(w.numel() for w in model.parameters())
                   for model, n in messages)

    def buffers(size):                                       # a counter has 8 bytes
        return sum(n * w.numel() * max(size, w.element_size()) for model, n in messages
                   for name, w in model.named_buffers() if name in model.state_dict())

    return {"bytes_up": weights(up_number_bytes), "bytes_up_buffers": buffers(up_number_bytes),
            "bytes_down": weights(FLOAT_BYTES), "bytes_down_buffers": buffers(FLOAT_BYTES)}


def count_logit_bytes(num_clients, num_classes, up, down, indices=0):
    """The metrics of a round in which each client sends the logits (or probabilities) of `up`
    samples, and receives those of `down` samples, and `indices` numbers of samples."""
    return {"bytes_up": FLOAT_BYTES * up * num_classes * num_clients,
            "bytes_down": FLOAT_BYTES * down * num_classes * num_clients,
            "bytes_down_indices": INDEX_BYTES * indices * num_clients}
