"""--paper: the settings of each paper, for its own method and for those that it compares with.

    PAPERS = {paper: {"shared": {setting: value},       of all its methods: data, networks, ...
                      algorithm: {setting: value}}}     of one, over `PAPER` in its file; {}: none

An algorithm that a paper does not name is refused. No paper sets --dataset: PUBLIC_SETS has its
public data set for each task. The constants before PAPERS are what several of its entries share.

Sources: FedSDD section 4.1 and Table 2 (alpha 0.1); FedDF's public code; FedGEMS Tables 11, 13 and
Appendix B; FedGKT Tables 6, 10; FedMD's public code; FedGen Table 1.
"""

AMSGRAD = {"batch_size": 64, "lr": 1e-3, "optimizer": "amsgrad", "weight_decay": 1e-4}
TWENTY_CLIENTS_AUGMENTED = {"clients": 20, "partition": "dirichlet_equal", "augment": True}
# Learning rates fall on a plateau in FedGKT (section 4.2) and, following it, in FedGEMS (section
# 4.1). The papers name no patience: 10 is ReduceLROnPlateau's default, as in FedGKT's code.
# "validation" is shared wherever a method needs it, so that all methods have the same images.
SIXTEEN_CLIENTS_PLATEAU = {"clients": 16, "augment": True, "lr_patience": 10, "validation": 0.1}
IID, DIRICHLET = {"partition": "iid"}, {"partition": "dirichlet_balanced", "alpha": 0.5}
PLAIN_FEDDF = {"drop_worst": False, "patience": None, "max_grad_norm": None, "cosine": False}
EDGE = {"model": ["gkt_edge"], "server_model": "gkt_server55"}
# FedGKT, Table 10, not iid: "SGD, lr=0.005, momentum=0.9", without the weight decay that it lists
# for Adam. The public code has Nesterov's momentum.
FEDGKT_SGD = {"optimizer": "momentum", "server_optimizer": "momentum", "lr": 0.005,
              "server_lr": 0.005, "weight_decay": 0.0, "server_epochs": 40}
FEDAVG = {**AMSGRAD, "rounds": 200, "participation": 1.0, "local_epochs": 20}
FEDGKT_BASELINES = {"fedavg": FEDAVG, "centralized": {"rounds": 300, "lr": 3e-3}}
FEDGEMS_DATA = {**SIXTEEN_CLIENTS_PLATEAU, "server_model": "bottleneck56", "public": "half"}
FEDGEMS = {
    "fedgems": {}, "fedgems-ablations": {}, "fedgem": {}, "dsfl": {}, "cronus": {},
    "standalone": {}, "public-private": {}, "centralized": {}, "centralized-all": {},
    # Table 1: FedMD's public images are labeled, for its transfer learning. Table 13 has no epochs
    # of it: they are FedMD's own, of PAPER in its file.
    "fedmd": {**AMSGRAD, "rounds": 200, "local_epochs": 2, "public_batch_size": 64,
              "subset_size": None, "kernel_l2": 0.0}}
FEDGEN = {"rounds": 200, "participation": 0.5, "local_steps": 20, "batch_size": 32, "lr": 0.01}
# FedGen's text does not say how its FedDF distills. Here it has the optimizer and the rate of its
# own public code, but no validation set, and FedSDD a rate below the clients'.
FEDGEN_STEPS = {"distill_steps": 50, "server_batch_size": 64}
PAPERS = {
    "fedsdd": {
        "shared": {**TWENTY_CLIENTS_AUGMENTED, "model": ["resnet20"], "alpha": 0.1},
        "fedavg": {}, "fedprox": {}, "scaffold": {}, "fedbe": {},
        "fedsdd": {}, "fedsdd-ablations": {},
        "feddf": {"lr": 0.8, **PLAIN_FEDDF, "server_optimizer": "sgd", "server_lr": 0.1,
                  "server_batch_size": 256, "distill_steps": 5000, "temperature": 4.0}},
    "feddf": {
        "shared": {**TWENTY_CLIENTS_AUGMENTED, "model": ["resnet8"], "alpha": 1.0,
                   "validation": 0.1},
        "fedavg": {"lr": 0.1}, "feddf": {}},
    "fedgems-homogeneous": {
        "shared": {**FEDGEMS_DATA, **IID, "model": ["bottleneck11"]}, **FEDGEMS,
        # It runs FedML's FedGKT, where the clients alone distill, by default and in its README.
        "fedavg": FEDAVG, "fedgkt": {"server_distill": False, **EDGE},
        # distill_steps: 5 epochs of half of CIFAR's training images, 5 x ceil(25,000 / 64). With
        # another number of public images, give --distill-steps. The weight decay is the clients'.
        "feddf": {**AMSGRAD, **PLAIN_FEDDF, "rounds": 100, "participation": 1.0, "local_epochs": 40,
                  "server_optimizer": "amsgrad", "server_batch_size": 64, "distill_steps": 1955}},
    # The paper has no FedAvg and no FedDF here: they average clients with the same network.
    # Networks of clients 1 to 8, and of 9 to 16, as Table 11 prints them (D1 in models.py).
    "fedgems-heterogeneous": {
        "shared": {**FEDGEMS_DATA, **DIRICHLET,
                 "model": ["bottleneck11", "bottleneck14a", "bottleneck14b", "bottleneck14c",
                           "bottleneck17a", "bottleneck17b", "bottleneck17c", "bottleneck14a"]},
        # Table 13: "SGD, lr=0.005, wd=0.0001", without the momentum of FedGKT's own Table 10.
        **FEDGEMS, "fedgkt": {**EDGE, **FEDGKT_SGD, "optimizer": "sgd", "server_optimizer": "sgd",
                              "weight_decay": 1e-4, "server_distill": False}},
    "fedgkt": {
        "shared": {**SIXTEEN_CLIENTS_PLATEAU, **IID, "model": ["bottleneck56"]}, **FEDGKT_BASELINES,
        "fedgkt": EDGE, "fedgkt-async": EDGE, "split-learning": EDGE},
    # Table 6 is of CIFAR-10. CIFAR-100 and CINIC-10: --partition dirichlet_balanced
    "fedgkt-noniid": {
        "shared": {**SIXTEEN_CLIENTS_PLATEAU, "partition": "fedgkt_table6", "alpha": 0.5,
                 "model": ["bottleneck56"]}, **FEDGKT_BASELINES,
        "fedgkt": {**EDGE, **FEDGKT_SGD}, "fedgkt-async": {**EDGE, **FEDGKT_SGD}},
    # MNIST. Clients hold half of the training images, as in the paper; of the other half a server
    # that distills uses 1,000. FedProx's mu and FedGen's weight are from the public code.
    "fedgen": {
        "shared": {"clients": 20, "partition": "dirichlet", "alpha": 0.1, "model": ["cnn_6_16"],
                 "public": "half-train", "public_size": 1000},
        "fedavg": FEDGEN, "fedprox": {**FEDGEN, "mu": 1.0}, "scaffold": FEDGEN,
        "fedgen": {**FEDGEN, "generated_weight": 10.0, "generated_weight_decay": 0.98},
        "fedntd": {**FEDGEN, "optimizer": "sgd", "weight_decay": 0.0},
        "fd": {"rounds": 200, "local_steps": 20, "batch_size": 32, "lr": 0.01,
               "optimizer": "sgd", "weight_decay": 0.0},     # all clients take part
        "feddf": {**FEDGEN, **FEDGEN_STEPS, "drop_worst": False, "patience": None},
        "fedbe": {**FEDGEN, **FEDGEN_STEPS, "distill": True, "server_lr": 0.01},
        "fedsdd": {**FEDGEN, **FEDGEN_STEPS, "server_lr": 0.005},
        "fedsdd-ablations": {**FEDGEN, **FEDGEN_STEPS, "server_lr": 0.005}},
    # CIFAR, iid as in the public code: --dataset cifar100. REPRODUCE.md has the other settings.
    "fedmd": {
        "shared": {"clients": 10, "model": [f"fedmd{j}" for j in range(10)],
                 "partition": "few_per_class", "per_class": 3},
        "fedmd": {}, "fedmd-pooled": {}},
}

# {data set: the paper's public data set}. (FedGEMS uses half of the task's own images; FedGKT has
# no public images.) If a name is not in load.DATASETS, an error message shows it and asks for
# --public.
CIFAR_TASKS = {"cifar10": "cifar100", "cifar100": "ImageNet-32"}
PUBLIC_SETS = {"fedsdd": CIFAR_TASKS, "feddf": CIFAR_TASKS,
               "fedmd": {"cifar100": "cifar10", "emnist": "mnist"}}
EMBEDDED = {"glyphs": "glyphs-letters", "glyphs-letters": "glyphs"}      # public for each other
