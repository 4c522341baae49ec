"""--paper: the settings of each paper, for its own method and for those that it compares with.

A paper is one `Preset` in PAPERS. It refuses an algorithm that it does not list; {} means that
`PAPER` in the algorithm's file says all. No paper sets --dataset.
"""
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Preset:
    """What --paper sets; a flag that is typed wins over it."""

    shared: dict         # {setting: value} of all its methods: clients, images, networks, training.
    #                      Has "validation" if one of them needs it: all hold the same images then
    methods: dict        # {algorithm: {setting: value}} of one, over `PAPER` in its file
    public_sets: dict = field(default_factory=dict)    # {task: public data set}, names of --dataset
    #                      and --public. One that is not in load.DATASETS is named in a refusal


PAPERS = {}

# ------------------------------------------------------ FedSDD: section 4.1 and Table 2 (alpha 0.1)

CIFAR_TASKS = {"cifar10": "cifar100", "cifar100": "ImageNet-32"}
TWENTY_CLIENTS_AUGMENTED = dict(clients=20, partition="dirichlet_equal", augment=True)
PLAIN_FEDDF = dict(drop_worst=False, patience=None, max_grad_norm=None, cosine=False)

PAPERS["fedsdd"] = Preset(
    shared=dict(TWENTY_CLIENTS_AUGMENTED, alpha=0.1, model=["resnet20"]),
    methods={
        "fedavg": {},
        "fedprox": {},
        "scaffold": {},
        "fedbe": {},
        "fedsdd": {},
        "fedsdd-ablations": {},
        "feddf": dict(PLAIN_FEDDF, lr=0.8, server_optimizer="sgd", server_lr=0.1,
                      server_batch_size=256, distill_steps=5000, temperature=4.0)},
    public_sets=CIFAR_TASKS)

# --------------------------------------------------------------------------- FedDF: its public code

PAPERS["feddf"] = Preset(
    shared=dict(TWENTY_CLIENTS_AUGMENTED, alpha=1.0, model=["resnet8"], validation=0.1),
    methods={
        "fedavg": dict(lr=0.1),
        "feddf": {}},
    public_sets=CIFAR_TASKS)

# ----------------------------------------------------- FedGKT: Tables 6 and 10, and its public code

# Learning rates fall on a plateau in FedGKT (section 4.2) and, following it, in FedGEMS (section
# 4.1). The papers name no patience: 10 is ReduceLROnPlateau's default, as in FedGKT's code.
SIXTEEN_CLIENTS_PLATEAU = dict(clients=16, augment=True, lr_patience=10, validation=0.1)
AMSGRAD = dict(optimizer="amsgrad", lr=1e-3, weight_decay=1e-4, batch_size=64)
FEDAVG_AMSGRAD = dict(AMSGRAD, rounds=200, participation=1.0, local_epochs=20)
CENTRALIZED = dict(rounds=300, lr=3e-3)
EDGE = dict(model=["gkt_edge"], server_model="gkt_server55")

PAPERS["fedgkt"] = Preset(
    shared=dict(SIXTEEN_CLIENTS_PLATEAU, partition="iid", model=["bottleneck56"]),
    methods={
        "fedavg": FEDAVG_AMSGRAD,
        "centralized": CENTRALIZED,
        "fedgkt": EDGE,
        "fedgkt-async": EDGE,
        "split-learning": EDGE})

# Table 10, not iid: "SGD, lr=0.005, momentum=0.9", without the weight decay that it lists for Adam.
# The public code has Nesterov's momentum.
EDGE_SGD = dict(EDGE, optimizer="momentum", server_optimizer="momentum", lr=0.005, server_lr=0.005,
                weight_decay=0.0, server_epochs=40)

# Table 6 is of CIFAR-10. CIFAR-100 and CINIC-10: --partition dirichlet_balanced
PAPERS["fedgkt-noniid"] = Preset(
    shared=dict(SIXTEEN_CLIENTS_PLATEAU, partition="fedgkt_table6", alpha=0.5,
                model=["bottleneck56"]),
    methods={
        "fedavg": FEDAVG_AMSGRAD,
        "centralized": CENTRALIZED,
        "fedgkt": EDGE_SGD,
        "fedgkt-async": EDGE_SGD})

# ------------------------------------------------------------ FedGEMS: Tables 11 and 13, Appendix B

FEDGEMS_SHARED = dict(SIXTEEN_CLIENTS_PLATEAU, server_model="bottleneck56", public="half")
FEDGEMS_METHODS = {
    "fedgems": {},
    "fedgems-ablations": {},
    "fedgem": {},
    "dsfl": {},
    "cronus": {},
    "standalone": {},
    "public-private": {},
    "centralized": {},
    "centralized-all": {},
    # Table 1: FedMD's public images are labeled, for its transfer learning. Table 13 has no epochs
    # of it: they are FedMD's own, of PAPER in its file.
    "fedmd": dict(AMSGRAD, rounds=200, local_epochs=2, public_batch_size=64, subset_size=None,
                  kernel_l2=0.0)}

PAPERS["fedgems-homogeneous"] = Preset(
    shared=dict(FEDGEMS_SHARED, partition="iid", model=["bottleneck11"]),
    methods={
        **FEDGEMS_METHODS,
        "fedavg": FEDAVG_AMSGRAD,
        # It runs FedML's FedGKT, where the clients alone distill, by default and in its README.
        "fedgkt": dict(EDGE, server_distill=False),
        # distill_steps: 5 epochs of half of CIFAR's training images, 5 x ceil(25,000 / 64). With
        # another number of public images, give --distill-steps. The weight decay is the clients'.
        "feddf": dict(AMSGRAD, **PLAIN_FEDDF, rounds=100, participation=1.0, local_epochs=40,
                      server_optimizer="amsgrad", server_batch_size=64, distill_steps=1955)})

# Table 11, the networks of clients 1 to 8, and of 9 to 16, as it prints them (D1 in models.py). The
# paper has no FedAvg and no FedDF here: they average clients with the same network.
PAPERS["fedgems-heterogeneous"] = Preset(
    shared=dict(FEDGEMS_SHARED, partition="dirichlet_balanced", alpha=0.5,
                model=["bottleneck11", "bottleneck14a", "bottleneck14b", "bottleneck14c",
                       "bottleneck17a", "bottleneck17b", "bottleneck17c", "bottleneck14a"]),
    methods={
        **FEDGEMS_METHODS,
        # Table 13: "SGD, lr=0.005, wd=0.0001", without the momentum of FedGKT's own Table 10.
        "fedgkt": {**EDGE_SGD, "optimizer": "sgd", "server_optimizer": "sgd", "weight_decay": 1e-4,
                   "server_distill": False}})

# --------------------------------------------------------------------------- FedGen: Table 1, MNIST
#
# Clients hold half of the training images, as in the paper; of the other half a server that
# distills uses 1,000. FedProx's mu and FedGen's weight are from the public code. The text does not
# say how its FedDF distills: here with the optimizer and the rate of FedDF's own public code, but
# without a validation set; FedSDD has a rate below the clients'.

FEDGEN_CLIENTS = dict(rounds=200, local_steps=20, batch_size=32, lr=0.01)
FEDGEN_HALF = dict(FEDGEN_CLIENTS, participation=0.5)
FEDGEN_DISTILL = dict(FEDGEN_HALF, distill_steps=50, server_batch_size=64)

PAPERS["fedgen"] = Preset(
    shared=dict(clients=20, partition="dirichlet", alpha=0.1, model=["cnn_6_16"],
                public="half-train", public_size=1000),
    methods={
        "fedavg": FEDGEN_HALF,
        "fedprox": dict(FEDGEN_HALF, mu=1.0),
        "scaffold": FEDGEN_HALF,
        "fedgen": dict(FEDGEN_HALF, generated_weight=10.0, generated_weight_decay=0.98),
        "fedntd": dict(FEDGEN_HALF, optimizer="sgd", weight_decay=0.0),
        "fd": dict(FEDGEN_CLIENTS, optimizer="sgd", weight_decay=0.0),       # all clients take part
        "feddf": dict(FEDGEN_DISTILL, drop_worst=False, patience=None),
        "fedbe": dict(FEDGEN_DISTILL, distill=True, server_lr=0.01),
        "fedsdd": dict(FEDGEN_DISTILL, server_lr=0.005),
        "fedsdd-ablations": dict(FEDGEN_DISTILL, server_lr=0.005)})

# --------------------------------------------------------------- FedMD: its public code, CIFAR, iid
#
# --dataset cifar100. docs/REPRODUCE.md has the commands of its other settings.

PAPERS["fedmd"] = Preset(
    shared=dict(clients=10, partition="few_per_class", per_class=3,
                model=[f"fedmd{j}" for j in range(10)]),
    methods={
        "fedmd": {},
        "fedmd-pooled": {}},
    public_sets={"cifar100": "cifar10", "emnist": "mnist"})
