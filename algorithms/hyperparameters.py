"""What the hyperparameters mean: the keywords of every algorithm's `run`.

A keyword that is not here, or that means something special in an algorithm, is described in the
docstring of that algorithm's `run`.
"""
MEANING = {
    "rounds": "number of communication rounds",
    "participation": "share of the clients that take part in a round",
    "attack": "an `Attack` of attacks.py, which replaces the uploads of malicious clients",
    # the clients
    "local_epochs": "passes of a client over its own data in a round",
    "local_steps": "optimizer steps of a client in a round, instead of --local-epochs",
    "public_epochs": "passes of a client over the public data in a round",
    "batch_size": "batch size of a client",
    "lr": "learning rate of a client",
    "optimizer": "optimizer of a client: new in every round if the client receives a model from "
                 "the server, otherwise kept over the rounds",
    "weight_decay": "L2 penalty of the optimizers",
    "mu": "weight of the proximal term, in FedProx's local training",
    # the server
    "server_epochs": "passes of the server over the public data in a round",
    "distill_steps": "steps of distillation on the server in a round",
    "server_batch_size": "batch size of the server",
    "server_lr": "learning rate of the server",
    "server_optimizer": "optimizer of the server",
    "temperature": "softens teacher and student in the distillation loss",
    # FedSDD
    "K": "global models (of each network), each with a group of clients",
    "R": "number of last rounds whose averaged models form the ensemble",
    "local": "method of local training and averaging inside a group",
    # FedGEMS
    "epsilon": "weight of the cross-entropy; 1 - epsilon is that of the distillation",
    # FedMD
    "min_delta": "smallest gain of accuracy that counts for early stopping on the public data; "
                 "FedMD's code has 0.005 for CIFAR, 0.001 for MNIST",
    "kernel_l2": "L2 penalty on the last layer's weights",
    # FedGKT
    "server_distill": "the server learns from the clients' logits too",
    "client_distill": "the clients learn from the server's logits too",
    "server_order": "order of the server's batches in each epoch: client after client, or the "
                    "batches of all clients mixed",
    "common_start": "clients of one architecture start from the same weights, so that their "
                    "feature maps are alike",
    "features": "number type in which feature maps are sent and kept",
}
