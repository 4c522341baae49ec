"""Clients hold what each rule says: properties of real draws, never of a mocked generator."""
import numpy as np
import pytest

import partition
from partition import dirichlet, dirichlet_balanced, dirichlet_by_client, dirichlet_equal

CLASSES, SHARES = [3, 10, 11, 12, 15, 40], [.1, .1, .2, .2, .3, .1]
LABELS = np.random.default_rng(7).choice(CLASSES, size=1500, p=SHARES)
WRITERS = np.random.default_rng(8).integers(100, 163, size=1500)
WRITERS_OF_15 = np.random.default_rng(2).permutation(np.repeat(np.arange(100), 15))
SUBCLASS = np.repeat(np.arange(30), 50)       # five subclasses in each of six superclasses
TEN = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 150))
EXHAUSTIVE = {      # rules that use every sample, which take lists as well as arrays
    "iid": lambda rng: partition.iid(LABELS.tolist(), 7, rng),
    "dirichlet": lambda rng: dirichlet(LABELS.tolist(), 7, .5, rng),
    "dirichlet_balanced": lambda rng: dirichlet_balanced(LABELS.tolist(), 7, .5, rng),
    "dirichlet_equal": lambda rng: dirichlet_equal(LABELS.tolist(), 7, .5, rng),
    "dirichlet_equal_three_groups": lambda rng: dirichlet_equal(LABELS.tolist(), 23, .5, rng),
    "dirichlet_by_client": lambda rng: dirichlet_by_client(LABELS.tolist(), 7, .5, rng),
    "by_writer": lambda rng: partition.by_writer(WRITERS.tolist(), 7, rng),
    "hold_out": lambda rng: partition.hold_out(LABELS.tolist(), .2, rng),
    "halves": lambda rng: partition.halves(LABELS.tolist(), rng),
    "hold_out_writers": lambda rng: partition.hold_out_writers(WRITERS.tolist(), .2, rng),
    "fedgkt_table6": lambda rng: partition.fedgkt_table6(TEN.tolist(), 16, rng)}
ALL = EXHAUSTIVE | {
    "single_writer": lambda rng: partition.single_writer(WRITERS.tolist(), 7, rng),
    "few_per_class": lambda rng: partition.few_per_class(LABELS.tolist(), 7, 3, rng),
    "by_subclass": lambda rng: partition.by_subclass(
        (SUBCLASS // 5).tolist(), SUBCLASS.tolist(), 7, rng)}
every = pytest.mark.parametrize("name", ALL)
dirichlets = pytest.mark.parametrize("split", [dirichlet, dirichlet_balanced, dirichlet_equal])


def rng(seed=0):
    return np.random.default_rng(seed)


def same(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def counts(labels, parts):
    """[clients, classes]: how many samples of each class each client holds."""
    classes, numbers = np.unique(labels, return_inverse=True)
    return np.array([np.bincount(numbers[part], minlength=len(classes)) for part in parts])


@every
def test_parts_are_disjoint_sorted_int64_rows(name):
    """And rules that use every sample use each once."""
    parts = ALL[name](rng())
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    assert name not in EXHAUSTIVE or np.array_equal(np.sort(rows), np.arange(1500))
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


WHOLE = {partition.iid: (), dirichlet: (1,), dirichlet_balanced: (1,), dirichlet_equal: (1,),
         dirichlet_by_client: (1,)}
ERRORS = [    # (rule, arguments without rng, words of the error)
    *((rule, (LABELS, m, *more), f"1500 samples cannot be split among {m} clients")
      for rule, more in [*WHOLE.items(), (partition.few_per_class, (1,))] for m in (0, 1501)),
    (partition.by_subclass, (SUBCLASS, SUBCLASS, 0), "among 0 clients"),
    *((partition.by_writer, ([5, 5, 9, 2, 2, 2], m), f"{m} clients and 3 writers") for m in (4, 0)),
    *((partition.single_writer, (np.repeat([5, 9, 2], [18, 17, 19]), m),
       f"{m} clients and 2 writers with 18 or more") for m in (3, 0)),
    *((rule, (LABELS, 4, alpha), f"alpha is {alpha}")
      for rule in list(WHOLE)[1:] for alpha in (0, -1., np.nan, np.inf)),
    # With alpha near 0 each of two classes goes to one client: three cannot have 10 samples each.
    *((rule, ([0, 1] * 20, 3, 1e-6), "1000 draws.* 3 clients 10 samples: .*or use dirichlet_by_cli")
      for rule in (dirichlet, dirichlet_balanced)),
    (dirichlet_equal, ([0, 1] * 120, 12, 1e-6),
     "^12 clients, split 10 at a time: .* 10 clients 10 samples: .* or use dirichlet_by_client"),
    (partition.few_per_class, ([4] * 6 + [2] * 5, 3, 2), "class 2 has 5.* need 6"),
    (partition.by_subclass, ([1, 1, 0, 0, 0], [7, 7, 8, 8, 8], 3),
     "subclass 7 of superclass 1 has 2 samples for 3 clients"),
    *((partition.hold_out_writers, ([5, 5, 9, 9, 9], share), "one part empty")
      for share in (0, .7)),
    *((partition.hold_out, (np.zeros(10), share), "one part empty") for share in (0, .01, .99, 1)),
    *((partition.fedgkt_table6, (labels, m), "16 clients and 10 classes")
      for labels, m in [(TEN, 15), (TEN, 17), (TEN % 9, 16), (TEN + 1, 16), ([], 16)]),
    (partition.fedgkt_table6, (np.arange(20) % 10, 16), "20 samples are too few")]


@pytest.mark.parametrize("rule, given, words", ERRORS)
def test_what_cannot_be_split_is_an_error_of_one_line(rule, given, words):
    with pytest.raises(ValueError, match=words) as error:
        rule(*given, rng=rng())
    assert "\n" not in str(error.value)


def test_one_hot_labels_are_refused():
    with pytest.raises(ValueError, match=r"^labels have shape \[1500, 10\]: one number per sample"):
        dirichlet(np.eye(10)[TEN], 7, .5, rng())


@pytest.mark.parametrize("split", [dirichlet, dirichlet_balanced])
def test_min_size_samples_for_each_client_must_exist(split):
    """9 samples are enough for 3 clients with 3 each, and too few for 3 clients with 4 each."""
    assert [len(part) for part in split([0] * 9, 3, 1e9, rng(), min_size=3)] == [3, 3, 3]
    with pytest.raises(ValueError, match="9 samples .* 3 clients with 4 or more each"):
        split([0] * 9, 3, 1e9, rng(), min_size=4)


def test_iid_sizes_differ_by_at_most_one():
    assert [len(part) for part in partition.iid(np.zeros(17), 5, rng())] == [4, 4, 3, 3, 3]
    assert [len(part) for part in partition.iid(np.zeros(5), 5, rng())] == [1] * 5


def test_iid_class_shares_are_alike():
    """Each count is hypergeometric: five of its standard deviations are never left here."""
    labels = np.repeat(np.arange(4), 2500)
    expected, deviation = 500, np.sqrt(2000 * (1 / 4) * (3 / 4) * (8000 / 9999))
    held = counts(labels, partition.iid(labels, 5, rng()))
    assert np.abs(held - expected).max() < 5 * deviation


def test_no_writer_is_split_between_clients():
    """63 writers for 8 clients: numbers of writers differ by at most one."""
    owners = [set(WRITERS[part]) for part in partition.by_writer(WRITERS, 8, rng())]
    assert sum(map(len, owners)) == len(set().union(*owners)) == 63
    assert {len(owner) for owner in owners} == {7, 8}


@pytest.mark.parametrize("num_clients", [1, 7, 30])
def test_single_writer_gives_each_client_all_samples_of_one(num_clients):
    parts = partition.single_writer(WRITERS, num_clients, rng())
    chosen = [WRITERS[part[0]] for part in parts]
    assert len(parts) == num_clients == len(set(chosen))
    assert same(parts, [np.flatnonzero(WRITERS == writer) for writer in chosen])


@pytest.mark.parametrize("min_size", [1, 18])
def test_single_writer_draws_from_all_writers_with_min_size_samples(min_size):
    """Seven of them for each of 80 seeds."""
    drawn = {WRITERS[part[0]] for seed in range(80)
             for part in partition.single_writer(WRITERS, 7, rng(seed), min_size)}
    assert drawn == {writer for writer in WRITERS if (WRITERS == writer).sum() >= min_size}


@pytest.mark.parametrize("alpha", [.2, 1., 10.])
def test_dirichlet_shares_have_mean_and_variance_of_dir(alpha):
    """A component of Dir(alpha x M) has mean 1/M and variance (1/M)(1 - 1/M) / (M alpha + 1).
    1,000 classes give the variance to 15%, the mean to five standard errors and a cut's rounding.
    """
    labels, M = np.repeat(np.arange(1000), 50), 5
    shares = counts(labels, dirichlet(labels, M, alpha, rng())) / 50
    variance = (1 / M) * (1 - 1 / M) / (M * alpha + 1)
    assert shares.var() == pytest.approx(variance, rel=.15)
    assert (np.abs(shares.mean(axis=1) - 1 / M) < 5 * np.sqrt(variance / 1000) + 1 / 50).all()


def test_dirichlets_expected_sizes_are_equal():
    """Each of 20 clients has 1/20 of 2,000 classes of three images, to five standard errors. Cuts
    that are rounded down leave most of each class to the last client; cuts to the nearest give the
    first and the last too little."""
    labels = np.repeat(np.arange(2000), 3)
    held = counts(labels, dirichlet(labels, 20, .5, rng()))                       # [20, 2000]
    assert (np.abs(held.mean(axis=1) - 3 / 20) < 5 * held.std(axis=1) / np.sqrt(2000)).all()


@dirichlets
def test_the_last_client_has_a_rest_of_more_classes_as_in_public_code(split):
    """In `dirichlet` it has not. The mean of ten seeds with 100 classes of 30 images; the last
    client of `dirichlet_equal` is that of the last ten."""
    labels = np.repeat(np.arange(100), 30)
    classes = np.mean([(counts(labels, split(labels, 20, .5, rng(seed))) > 0).sum(axis=1)
                       for seed in range(10)], axis=0)                            # [20]
    ratio = classes[-1] / classes[:-1].mean()
    assert .95 < ratio < 1.05 if split is dirichlet else 1.15 < ratio < 1.35


def test_balanced_gives_full_clients_nothing_more():
    """Nothing: with 12 clients the floating point sum of the shares is at times just below 1."""
    def late(split, num_clients, seed):
        held = counts(LABELS, split(LABELS, num_clients, .3, rng(seed), min_size=1))
        before = np.cumsum(held, axis=1) - held       # what a client had when a class was split
        return held[before >= len(LABELS) / num_clients].any()
    assert not any(late(dirichlet_balanced, m, seed) for m in (6, 12) for seed in range(20))
    assert any(late(dirichlet, 6, seed) for seed in range(20))       # the plain rule does not


@pytest.mark.parametrize("split", [dirichlet_equal, dirichlet_by_client])
@pytest.mark.parametrize("num_clients", [1, 2, 4, 9, 10, 11, 20, 23])
def test_equal_sizes_differ_by_at_most_one(num_clients, split):
    """The larger first."""
    sizes = [len(part) for part in split(LABELS, num_clients, .5, rng())]
    assert sizes == [1500 // num_clients + (i < 1500 % num_clients) for i in range(num_clients)]


@pytest.mark.parametrize("alpha", [.2, 1., 10.])
def test_by_client_shares_have_mean_and_variance_of_dir_of_the_prior(alpha):
    """A component q of Dir(alpha p) has mean p and variance v = p (1 - p) / (alpha + 1). A share of
    n samples that are drawn by it has variance v + (p (1 - p) - v) / n. Of 2,000 clients the first
    600 draw, long before a class has run out: five standard errors, the variance to 20%."""
    n, p = 50, np.array([.5, .3, .2])
    labels = np.repeat([7, 8, 9], (2000 * n * p).astype(int))
    shares = counts(labels, dirichlet_by_client(labels, 2000, alpha, rng())[:600]) / n
    v = p * (1 - p) / (alpha + 1)
    variance = v + (p * (1 - p) - v) / n
    assert (np.abs(shares.mean(axis=0) - p) < 5 * np.sqrt(variance / 600)).all()
    assert shares.var(axis=0) == pytest.approx(variance, rel=.2)


@pytest.mark.filterwarnings("error")
def test_by_client_by_hand():
    """With alpha near 0 a client wants one class, class 0 with p = 4/6. Then client 0 has three of
    it, and client 1 what is left; or both samples of class 1, and one of what is left: a 0."""
    labels = [0, 0, 1, 0, 0, 1]
    held = [counts(labels, dirichlet_by_client(labels, 2, 1e-9, rng(seed))).tolist()
            for seed in range(900)]
    first = held.count([[3, 0], [1, 2]])
    assert first + held.count([[1, 2], [3, 0]]) == 900
    assert abs(first - 600) < 5 * np.sqrt(900 * (4 / 6) * (2 / 6))


def test_by_client_draws_in_proportion_to_what_is_left_once_its_classes_have_run_out():
    """Who wants class 2 alone has its 10 samples and 40 others: of 60 and 30 that are left, 2 to 1,
    to five standard errors. Who wants class 1 has all of its 30."""
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    first = np.array([counts(labels, dirichlet_by_client(labels, 2, 1e-9, rng(seed)))[0]
                      for seed in range(500)])
    zeros = first[(first[:, 1] < 30) & (first[:, 2] == 10), 0]
    assert abs(zeros.mean() - 40 * 2 / 3) < 5 * np.sqrt(40 * (2 / 9) / len(zeros))


def test_equal_gives_half_the_mean_size_before_the_cut():
    """With alpha near 0 two clients get a class each: of 100 samples 25 are enough, 24 are not."""
    parts = dirichlet_equal(np.repeat([0, 1], [75, 25]), 2, 1e-9, rng())
    assert [len(part) for part in parts] == [50, 50]
    with pytest.raises(ValueError, match="gave each of 2 clients 25 samples"):
        dirichlet_equal(np.repeat([0, 1], [76, 24]), 2, 1e-9, rng())


@dirichlets
def test_large_alpha_gives_all_clients_the_same_classes(split):
    """And from everywhere in a class: its mean row to five standard errors, 1000 / sqrt(12 n)."""
    labels = np.repeat(np.arange(5), 1000)
    parts = split(labels, 5, 1e8, rng())
    assert np.abs(counts(labels, parts) - 200).max() <= 5
    assert all(abs((part % 1000).mean() - 499.5) < 5 * 1000 / (12 * 1000)**.5 for part in parts)


def test_few_per_class_can_use_every_sample():
    every_sample = partition.few_per_class(np.repeat([4, 2], 6), 6, 1, rng())
    assert np.array_equal(np.sort(np.concatenate(every_sample)), np.arange(12))
    labels, subclass = np.repeat([4, 2], 6), np.repeat([0, 1, 2, 3], 3)
    every_sample = partition.few_of_subclasses(labels, subclass, 2, 3, rng())
    assert np.array_equal(np.sort(np.concatenate(every_sample)), np.arange(12))


@pytest.mark.parametrize("num_clients", [1, 3, 5, 10, 12])
def test_by_subclass_gives_one_subclass_of_each_superclass(num_clients):
    """From five clients on all samples are used; clients 0 and 5 then share their subclasses."""
    parts = partition.by_subclass(SUBCLASS // 5, SUBCLASS, num_clients, rng())
    held = [np.unique(SUBCLASS[part]) for part in parts]
    assert all(np.array_equal(own // 5, np.arange(6)) for own in held)
    assert len(np.unique(np.concatenate(parts))) == 300 * min(num_clients, 5)
    assert num_clients <= 5 or np.array_equal(held[0], held[5])
    assert same(parts, partition.by_subclass(SUBCLASS // 5, SUBCLASS % 5, num_clients, rng()))


def test_by_subclass_ignores_the_order_of_appearance():
    """No order of a set decides which client gets which subclass: the generator does."""
    def held(order, seed):
        parts = partition.by_subclass(SUBCLASS[::order] // 5, SUBCLASS[::order], 5, rng(seed))
        return [set(SUBCLASS[::order][part]) for part in parts]
    assert held(1, 0) == held(-1, 0) != held(1, 1)


@pytest.mark.parametrize("share", [.5, .2, 1 / 3, .07])
def test_hold_out_takes_the_share_of_every_class_to_one_sample(share):
    held, _ = partition.hold_out(LABELS, share, rng())
    expected = share * np.unique(LABELS, return_counts=True)[1]
    assert (np.abs(counts(LABELS, [held])[0] - expected) < 1).all()
    assert abs(len(held) - share * 1500) <= .5


@pytest.mark.parametrize("share", [.5, .2, .29, 1 / 3])
def test_hold_out_writers_takes_whole_writers_until_they_are_the_share(share):
    """100 writers of 15 samples: exact where the share is of whole writers, else rounded up."""
    held = WRITERS_OF_15[partition.hold_out_writers(WRITERS_OF_15, share, rng())[0]]
    drawn, counts = np.unique(held, return_counts=True)
    assert len(drawn) == {.5: 50, .2: 20, .29: 29, 1 / 3: 34}[share] and set(counts) == {15}
    assert drawn.tolist() != [*range(len(drawn))]                     # not the first writers


def test_halves_differ_by_at_most_one_per_class_and_in_total():
    labels = np.repeat(np.arange(9), np.arange(1, 10))          # 45 samples, five odd classes
    public, private = counts(labels, partition.halves(labels, rng()))
    assert np.abs(public - private).max() == 1 == abs(public.sum() - private.sum())


TABLE = partition.FEDGKT_TABLE_6
PRINTED_ROW_SUMS = [4497, 1314, 2745, 3302, 3347, 3654, 2859, 3366,
                    2619, 1880, 3092, 3153, 3008, 3784, 3883, 3497]


def test_fedgkt_table_6_adds_up_only_with_row_7_put_right():
    """5,000 images of each class, and the printed row sums; row 7 is printed without its c4."""
    printed = TABLE.copy()
    printed[7] = [87, 2, 131, 1325, 1117, 704, 0, 0, 0, 0]
    off = [0, 0, 0, 0, 1117, 704 - 1117, -704, 0, 0, 0]
    assert (printed.sum(0) - 5000).tolist() == off and (TABLE.sum(0) == 5000).all()
    assert printed.sum(1).tolist() == TABLE.sum(1).tolist() == PRINTED_ROW_SUMS


@pytest.mark.parametrize("sizes", [[10_000] * 10, [4500] * 10, [500] * 10, [37] * 10,
                                   np.arange(100, 1100, 100)])
def test_fedgkt_table6_scales_with_class_sizes(sizes):
    """To one sample, as two borders are rounded to half a sample each."""
    labels = np.repeat(np.arange(10), sizes)
    held = counts(labels, partition.fedgkt_table6(labels, 16, rng()))
    assert (np.abs(held - TABLE * sizes / 5000) <= 1).all() and (held.sum(0) == sizes).all()


def test_fedgkt_table6_draws_its_counts_from_all_of_a_class():
    """Client 11 has 1,306 of 5,000 samples of class 0: their mean row to five standard errors."""
    labels = np.repeat(np.arange(10), 5000)
    parts = partition.fedgkt_table6(labels, 16, rng())
    assert np.array_equal(counts(labels, parts), TABLE)
    error = np.sqrt((5000**2 - 1) / 12 / 1306 * (5000 - 1306) / (5000 - 1))
    assert abs(parts[11][parts[11] < 5000].mean() - 4999 / 2) < 5 * error
