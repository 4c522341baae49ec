"""From data sets and settings to a `Federation`, and to the rounds of a method."""
from dataclasses import replace
from functools import partial

import numpy as np

import attacks
import models
from data.images import adapt, crop_and_flip, normalize, to_float
from data.split import seed_of_split, some_public
from experiment.common import refuses
from experiment.plateau import run_with_plateau
from experiment.settings import client_network
from federation import Data, Federation, new_network


def make_federation(command, datasets, seed, device):
    """The `Federation` of a seed, without networks: see `seen_by`.

    All images get the task's shape and are normalized by its training images. Bytes become floats
    here, after the rows are chosen: 1.28 million public images of ImageNet-32 are 4 GB of bytes.
    """
    data_cfg, task, foreign = command.data_cfg, datasets.task, datasets.foreign
    rows = datasets.splits[seed]

    def normalized(part, chosen):
        pixels = adapt(to_float(part.images[chosen]), task.train.images.shape[1:])
        labels = None if part.labels is None else part.labels[chosen].to(device)
        return Data(normalize(pixels, datasets.mean, datasets.std).to(device), labels)

    # The rows of a file may have public and validation images that this command does not use.
    public, public_test, validation = None, None, None
    if foreign is not None:
        every = np.arange(len(foreign.train.images))
        chosen = some_public(every, data_cfg.public_size, seed_of_split(data_cfg, seed))
        public = normalized(foreign.train, chosen)
        if data_cfg.joint:
            public_test = normalized(foreign.test, np.arange(len(foreign.test.labels)))
    elif data_cfg.public is not None:
        public = normalized(task.train, rows.public)
    if data_cfg.public == "half":
        public_test = normalized(task.test, rows.public_test)
    if data_cfg.validation is not None:
        validation = normalized(task.train, rows.validation)
    augment = {"augment": crop_and_flip} if command.training.augment else {}
    return Federation(
        private=[normalized(task.train, part) for part in rows.clients],
        test=normalized(task.test, rows.test), num_classes=task.num_classes, client_model=None,
        architecture=[], seed=seed, device=device, public=public, public_test=public_test,
        validation=validation, amp=command.training.amp, **augment)


def seen_by(method, fed, datasets):
    """The federation as a method sees it: with its networks, its threads and its public data."""
    algorithm, networks = method.algorithm, method.networks
    if datasets.foreign is not None and fed.public_test is not None:     # only with --joint
        if algorithm.public == "joint":
            fed = with_joint_layer(fed, datasets.foreign.num_classes)
        else:                                            # their labels are of another task
            fed = replace(fed, public_test=None)
    image_shape = tuple(fed.test.images.shape[1:])

    def new(name, key, init):
        return new_network(partial(models.build, name, image_shape, fed.num_classes), fed.seed, key,
                           init, device=fed.device, amp=fed.amp)

    def client_model(i, init=0):
        return new(client_network(networks.model, i), "init", init)

    def server_model(init=0):
        return new(networks.server_model, "server init", init)

    public = fed.public
    if algorithm.public == "none":
        public = None
    elif algorithm.public == "unlabeled" and public is not None:
        public = Data(public.images, None)
    return replace(
        fed, client_model=client_model, threads=method.threads, public=public,
        architecture=[client_network(networks.model, i) for i in range(len(fed.private))],
        server_model=None if algorithm.server == "none" else server_model)


def with_joint_layer(fed, num_public):
    """The federation whose networks know the public classes, too: their outputs come first.

    More outputs than classes would change the algorithms other than FedMD: drop_worst's chance, a
    softmax, the bytes of logits. So these have the task's classes alone.
    """
    def shifted(data):
        return data and data._replace(labels=data.labels + num_public)

    return replace(fed, private=[*map(shifted, fed.private)], test=shifted(fed.test),
                   validation=shifted(fed.validation), num_public_classes=num_public,
                   num_classes=num_public + fed.num_classes)


def attack_on(fed, training):
    """The `Attack` of --attack on a federation, or None."""
    if training.attack is None:
        return None
    return attacks.build(training.attack, fed.rng, len(fed.private), training.attackers,
                         training.attack_scale, training.attack_z)


def rounds_of(method, fed, training, state=None):
    """The generator that computes a method's rounds, or those that are left after `state`."""
    algorithm, attack = method.algorithm, attack_on(fed, training)
    more = {} if attack is None else {"attack": attack}
    if training.lr_patience is not None and algorithm.plateau:
        return run_with_plateau(algorithm, fed, method.cfg, state, training.lr_patience, **more)
    return algorithm.run(fed, method.cfg, state, **more)


def check(command, datasets, fed):
    """Raises BadInput if a network or an algorithm does not fit the data.

    fed    of the first seed: with another one clients have other images, but there are as many
           clients, of the same networks
    """
    attack = attack_on(fed, command.training)
    for method in command.methods:
        seen, algorithm = seen_by(method, fed, datasets), method.algorithm
        with refuses(ValueError):
            for ids in seen.clients_by_architecture().values():
                seen.client_model(ids[0])
            if seen.server_model:
                seen.server_model()
            algorithm.check(seen, method.cfg, attack=attack)
