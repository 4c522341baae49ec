"""Clients hold what each rule says: properties of real draws, never of a mocked generator."""
import warnings

import numpy as np
import pytest

import partition

LABELS = np.random.default_rng(7).choice([3, 10, 11, 12, 15, 40], size=1500, p=[.1, .1, .2, .2, .3, .1])
WRITERS = np.random.default_rng(8).integers(100, 163, size=1500)
SUBCLASS = np.repeat(np.arange(30), 50)                                    # five subclasses in each of six superclasses
EXHAUSTIVE = {
    "iid": lambda rng: partition.iid(LABELS, 7, rng),
    "dirichlet": lambda rng: partition.dirichlet(LABELS, 7, .5, rng),
    "dirichlet_balanced": lambda rng: partition.dirichlet_balanced(LABELS, 7, .5, rng),
    "dirichlet_equal": lambda rng: partition.dirichlet_equal(LABELS, 7, .5, rng),
    "dirichlet_equal_three_groups": lambda rng: partition.dirichlet_equal(LABELS, 23, .5, rng),
    "by_writer": lambda rng: partition.by_writer(WRITERS, 7, rng),
    "hold_out": lambda rng: partition.hold_out(LABELS, .2, rng),
    "halves": lambda rng: partition.halves(LABELS, rng),
}
ALL = EXHAUSTIVE | {
    "single_writer": lambda rng: partition.single_writer(WRITERS, 7, rng),
    "few_per_class": lambda rng: partition.few_per_class(LABELS, 7, 3, rng),
    "by_subclass": lambda rng: partition.by_subclass(SUBCLASS // 5, SUBCLASS, 7, rng),
}
DIRICHLET = [partition.dirichlet, partition.dirichlet_balanced, partition.dirichlet_equal]
every = pytest.mark.parametrize("split", ALL.values(), ids=ALL)
dirichlets = pytest.mark.parametrize("split", DIRICHLET)


def rng(seed=0):
    return np.random.default_rng(seed)


def same(one, other):
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other))


def counts(labels, parts):
    """[clients, classes]: how many samples of each class each client holds."""
    classes, numbers = np.unique(labels, return_inverse=True)
    return np.array([np.bincount(numbers[part], minlength=len(classes)) for part in parts])


# ------------------------------------------------------------------------------------------------------- every rule
@every
def test_no_sample_is_in_two_parts(split):
    rows = np.concatenate(split(rng()))
    assert len(np.unique(rows)) == len(rows)


@pytest.mark.parametrize("split", EXHAUSTIVE.values(), ids=EXHAUSTIVE)
def test_every_sample_is_in_some_part(split):
    assert np.array_equal(np.sort(np.concatenate(split(rng()))), np.arange(1500))


@every
def test_parts_are_sorted_int64_rows(split):
    for part in split(rng()):
        assert part.dtype == np.int64 and part.ndim == 1 and (np.diff(part) > 0).all()


@every
def test_same_seed_same_parts(split):
    assert same(split(rng(3)), split(rng(3)))


@every
def test_b21_another_seed_gives_other_parts(split):
    assert not same(split(rng(3)), split(rng(4)))


@every
def test_b21_the_global_generator_is_neither_read_nor_moved(split):
    np.random.seed(1)
    before = np.random.get_state()[1].copy(), np.random.get_state()[2]
    first = split(rng(3))
    assert np.array_equal(np.random.get_state()[1], before[0]) and np.random.get_state()[2] == before[1]
    np.random.seed(2)
    assert same(first, split(rng(3)))


@every
def test_labels_are_not_changed(split):
    before = [array.copy() for array in (LABELS, WRITERS, SUBCLASS)]
    split(rng())
    assert same(before, [LABELS, WRITERS, SUBCLASS])


@pytest.mark.parametrize("name", ["iid", "dirichlet", "dirichlet_balanced", "dirichlet_equal", "few_per_class"])
def test_b24_only_which_labels_are_equal_matters_not_their_numbers(name):
    """Class ids 10..15 beside 0..5: a relabelling in place would merge classes."""
    arguments = {"iid": (), "few_per_class": (3,)}.get(name, (.5,))
    gapped = np.array([0, 1, 10, 11, 12, 15])
    small = rng(5).integers(6, size=900)
    assert same(getattr(partition, name)(small, 5, *arguments, rng()),
                getattr(partition, name)(gapped[small], 5, *arguments, rng()))


@pytest.mark.parametrize("num_clients", [0, -1])
@pytest.mark.parametrize("split", [
    lambda m: partition.iid(LABELS, m, rng()), lambda m: partition.dirichlet(LABELS, m, 1., rng()),
    lambda m: partition.dirichlet_balanced(LABELS, m, 1., rng()),
    lambda m: partition.dirichlet_equal(LABELS, m, 1., rng()),
    lambda m: partition.by_writer(WRITERS, m, rng()), lambda m: partition.single_writer(WRITERS, m, rng()),
    lambda m: partition.few_per_class(LABELS, m, 1, rng()),
    lambda m: partition.by_subclass(SUBCLASS // 5, SUBCLASS, m, rng())])
def test_fewer_than_one_client_is_an_error(split, num_clients):
    with pytest.raises(ValueError, match="client"):
        split(num_clients)


@pytest.mark.parametrize("split", [
    lambda labels: partition.iid(labels, 6, rng()),
    lambda labels: partition.dirichlet(labels, 6, 1., rng(), min_size=0),
    lambda labels: partition.dirichlet_balanced(labels, 6, 1., rng(), min_size=0),
    lambda labels: partition.dirichlet_equal(labels, 6, 1., rng())])
def test_more_clients_than_samples_is_an_error(split):
    with pytest.raises(ValueError, match="5 samples are too few for 6 clients"):
        split(np.zeros(5, dtype=int))


# ------------------------------------------------------------------------------------------------------ iid, writers
def test_iid_sizes_differ_by_at_most_one():
    assert [len(part) for part in partition.iid(np.zeros(17), 5, rng())] == [4, 4, 3, 3, 3]


def test_iid_class_shares_are_alike():
    """Each count is hypergeometric: five of its standard deviations are never left here."""
    labels = np.repeat(np.arange(4), 2500)
    expected, deviation = 500, np.sqrt(2000 * (1 / 4) * (3 / 4) * (8000 / 9999))
    assert (np.abs(counts(labels, partition.iid(labels, 5, rng())) - expected) < 5 * deviation).all()


def test_no_writer_is_split_between_clients():
    owners = [set(WRITERS[part]) for part in partition.by_writer(WRITERS, 7, rng())]
    assert sum(map(len, owners)) == len(set().union(*owners)) == len(set(WRITERS))


def test_clients_have_as_many_writers_to_one():
    owners = [len(set(WRITERS[part])) for part in partition.by_writer(WRITERS, 8, rng())]
    assert max(owners) - min(owners) <= 1


def test_fewer_writers_than_clients_is_an_error():
    with pytest.raises(ValueError, match="4 clients and 3 writers"):
        partition.by_writer(np.array([5, 5, 9, 2, 2, 2]), 4, rng())


# --------------------------------------------------------------------------------------------------- Dirichlet rules
@pytest.mark.parametrize("alpha", [.2, 1., 10.])
def test_dirichlet_shares_have_the_variance_of_the_distribution(alpha):
    """A component of Dir(alpha x M) has variance (1/M)(1 - 1/M) / (M alpha + 1): 4,000 classes of 50 give it to 10%."""
    clients = 5
    labels = np.repeat(np.arange(4000), 50)
    shares = counts(labels, partition.dirichlet(labels, clients, alpha, rng())) / 50
    assert shares.var() == pytest.approx((1 / clients) * (1 - 1 / clients) / (clients * alpha + 1), rel=.1)


@pytest.mark.parametrize("alpha", [.2, 1.])
def test_dirichlet_gives_every_client_the_same_expected_share(alpha):
    """The mean of 4,000 shares lies within five standard errors of 1/M, up to the rounding of a cut of 50 samples."""
    clients = 5
    labels = np.repeat(np.arange(4000), 50)
    shares = counts(labels, partition.dirichlet(labels, clients, alpha, rng())) / 50
    error = np.sqrt((1 / clients) * (1 - 1 / clients) / (clients * alpha + 1) / 4000)
    assert (np.abs(shares.mean(axis=1) - 1 / clients) < 5 * error + 1 / 50).all()


@pytest.mark.parametrize("split", [partition.dirichlet, partition.dirichlet_balanced])
@pytest.mark.parametrize("seed", range(5))
def test_every_client_has_min_size_samples(split, seed):
    assert min(map(len, split(LABELS, 20, .3, rng(seed), min_size=20))) >= 20


@pytest.mark.parametrize("num_clients", [6, 12])
@pytest.mark.parametrize("seed", range(20))
def test_balanced_a_client_with_its_mean_share_gets_nothing_of_later_classes(seed, num_clients):
    """Nothing at all: with 12 clients the floating point sum of the shares is at times just below 1."""
    held = counts(LABELS, partition.dirichlet_balanced(LABELS, num_clients, .3, rng(seed), min_size=1))
    before = np.cumsum(held, axis=1) - held                                # what a client had when a class was dealt
    assert not held[before >= len(LABELS) / num_clients].any()


def test_the_plain_rule_does_not_balance():
    """The same check fails for `dirichlet`: the two rules are different."""
    held = [counts(LABELS, partition.dirichlet(LABELS, 6, .3, rng(seed), min_size=1)) for seed in range(20)]
    assert any(one[np.cumsum(one, axis=1) - one >= len(LABELS) / 6].any() for one in held)


@pytest.mark.parametrize("num_clients", [1, 2, 4, 9, 10, 11, 20, 23])
def test_b40_equal_sizes_differ_by_at_most_one_also_with_fewer_than_ten_clients(num_clients):
    sizes = [len(part) for part in partition.dirichlet_equal(LABELS, num_clients, .5, rng())]
    assert max(sizes) - min(sizes) <= 1 and len(sizes) == num_clients


def test_equal_deals_every_client_half_the_mean_size_before_the_cut():
    """With alpha near 0 two clients get a class each: of 100 samples 25 are enough, not 24."""
    parts = partition.dirichlet_equal(np.repeat([0, 1], [75, 25]), 2, 1e-9, rng())
    assert [len(part) for part in parts] == [50, 50]
    with pytest.raises(ValueError, match="gave each of 2 clients 25 samples"):
        partition.dirichlet_equal(np.repeat([0, 1], [76, 24]), 2, 1e-9, rng())


def test_equal_is_still_far_from_iid():
    """Mean squared deviation of class shares: many times that of iid parts of the same size."""
    def spread(parts):
        held = counts(LABELS, parts)
        return (held / held.sum(1, keepdims=True)).var(axis=0).sum()
    assert spread(partition.dirichlet_equal(LABELS, 10, .1, rng())) > 10 * spread(partition.iid(LABELS, 10, rng()))


@dirichlets
@pytest.mark.parametrize("alpha", [1e8, 1.7e308])
def test_large_alpha_gives_all_clients_the_same_classes(split, alpha):
    labels = np.repeat(np.arange(5), 1000)
    held = counts(labels, split(labels, 5, alpha, rng()))
    assert np.abs(held - 200).max() <= 5


@dirichlets
@pytest.mark.parametrize("alpha", [1e-2, 1e-3, 1e-10, 1e-300])
@pytest.mark.parametrize("num_clients", [2, 10, 20])
def test_small_alpha_ends_with_all_samples_dealt_or_one_clear_line(split, alpha, num_clients):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            rows = np.concatenate(split(LABELS, num_clients, alpha, rng()))
        except ValueError as error:
            assert "raise alpha" in str(error) and "\n" not in str(error)
        else:
            assert np.array_equal(np.sort(rows), np.arange(1500))


def test_an_impossible_draw_says_what_to_change():
    """With alpha near 0 each of six classes goes to one client whole: ten clients cannot have ten samples each."""
    with pytest.raises(ValueError, match=r"none of 1000 draws of Dir.* gave each of 10 clients 10 samples: raise alpha, or lower min_size"):
        partition.dirichlet(LABELS, 10, 1e-6, rng())


@dirichlets
@pytest.mark.parametrize("alpha", [0, -1., np.nan, np.inf])
def test_alpha_must_be_positive_and_finite(split, alpha):
    with pytest.raises(ValueError, match=f"alpha is {alpha}: a positive, finite number"):
        split(LABELS, 4, alpha, rng())


@pytest.mark.parametrize("split", [partition.dirichlet, partition.dirichlet_balanced])
def test_min_size_beyond_the_samples_is_an_error_before_any_draw(split):
    generator = rng()
    before = generator.bit_generator.state
    with pytest.raises(ValueError, match="1500 samples are too few for 10 clients with 151 or more each.*min_size"):
        split(LABELS, 10, 1., generator, min_size=151)
    assert generator.bit_generator.state == before


@dirichlets
def test_one_client_gets_everything(split):
    assert same(split(LABELS, 1, .1, rng()), [np.arange(1500)])


# ------------------------------------------------------------------------------------------------------------- FedMD
def test_few_per_class_gives_each_client_that_many_of_each():
    assert (counts(LABELS, partition.few_per_class(LABELS, 7, 3, rng())) == 3).all()


def test_few_per_class_can_use_every_sample():
    labels = np.repeat([4, 2], 6)
    assert np.array_equal(np.sort(np.concatenate(partition.few_per_class(labels, 3, 2, rng()))), np.arange(12))


def test_few_per_class_names_the_class_that_is_too_small():
    with pytest.raises(ValueError, match="class 2 has 5 samples: 3 clients with 2 each need 6"):
        partition.few_per_class(np.array([4] * 6 + [2] * 5), 3, 2, rng())


def test_few_per_class_zero_is_an_error():
    with pytest.raises(ValueError, match="per_class is 0: it must be at least 1"):
        partition.few_per_class(LABELS, 3, 0, rng())


@pytest.mark.parametrize("num_clients", [1, 3, 5, 10, 12])
def test_by_subclass_each_client_sees_one_subclass_of_each_superclass(num_clients):
    for part in partition.by_subclass(SUBCLASS // 5, SUBCLASS, num_clients, rng()):
        assert np.array_equal(np.unique(SUBCLASS[part]) // 5, np.arange(6))


def test_b26_clients_that_share_a_subclass_share_out_all_its_samples():
    parts = partition.by_subclass(SUBCLASS // 5, SUBCLASS, 10, rng())
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1500))
    assert np.array_equal(np.unique(SUBCLASS[parts[0]]), np.unique(SUBCLASS[parts[5]]))


def test_b27_by_subclass_is_fixed_by_the_generator_alone():
    """Subclasses named in another order of first appearance are dealt the same way: no order of a set decides."""
    parts = partition.by_subclass(SUBCLASS // 5, SUBCLASS, 10, rng())
    mirrored = partition.by_subclass(SUBCLASS[::-1] // 5, SUBCLASS[::-1], 10, rng())
    assert all(np.array_equal(np.unique(SUBCLASS[a]), np.unique(SUBCLASS[::-1][b])) for a, b in zip(parts, mirrored))


def test_by_subclass_knows_subclasses_that_are_numbered_within_their_superclass():
    for part in partition.by_subclass(SUBCLASS // 5, SUBCLASS % 5, 5, rng()):
        assert len(part) == 6 * 50 and len(np.unique(SUBCLASS[part])) == 6


def test_by_subclass_names_a_subclass_with_fewer_samples_than_clients():
    with pytest.raises(ValueError, match="subclass 7 of superclass 1 has 2 samples for 3 clients: at least one each"):
        partition.by_subclass(np.array([1, 1, 0, 0, 0]), np.array([7, 7, 8, 8, 8]), 3, rng())


# ---------------------------------------------------------------------------------------------------------- two parts
@pytest.mark.parametrize("share", [.5, .2, 1 / 3, .07])
def test_hold_out_takes_the_share_of_every_class_to_one_sample(share):
    held, _ = partition.hold_out(LABELS, share, rng())
    expected = share * np.unique(LABELS, return_counts=True)[1]
    assert (np.abs(counts(LABELS, [held])[0] - expected) < 1).all() and abs(len(held) - share * 1500) <= .5


def test_hold_out_of_a_round_share_is_exact():
    """0.29 x 100 is 28.999999999999996 in floating point: it must not become 28."""
    labels = np.repeat([0, 1], 100)
    assert counts(labels, partition.hold_out(labels, .29, rng())).tolist() == [[29, 29], [71, 71]]


def test_halves_differ_by_at_most_one_sample_per_class_and_in_total():
    labels = np.repeat(np.arange(9), np.arange(1, 10))                       # 45 samples, five classes of odd size
    public, private = counts(labels, partition.halves(labels, rng()))
    assert np.abs(public - private).max() == 1 and abs(public.sum() - private.sum()) == 1


@pytest.mark.parametrize("share", [0, 1, -.1, 1.5, np.nan])
def test_a_share_outside_0_1_is_an_error(share):
    with pytest.raises(ValueError, match="share is"):
        partition.hold_out(LABELS, share, rng())


def test_an_empty_part_is_an_error():
    with pytest.raises(ValueError, match="leaves one part empty"):
        partition.hold_out(np.zeros(10), .01, rng())


# ------------------------------------------------------------------------------------------------------ FedMD's writers

@pytest.mark.parametrize("num_clients", [1, 7, 63])
def test_single_writer_gives_each_client_all_samples_of_one_writer_and_to_no_two_the_same(num_clients):
    parts = partition.single_writer(WRITERS, num_clients, rng())
    writers = [np.unique(WRITERS[part]).tolist() for part in parts]
    assert len(parts) == num_clients == len({writer for [writer] in writers})
    assert all(np.array_equal(part, np.flatnonzero(WRITERS == writer)) for part, [writer] in zip(parts, writers))


def test_single_writer_leaves_the_samples_of_other_writers_to_nobody_and_draws_every_writer():
    drawn = [{WRITERS[part[0]] for part in partition.single_writer(WRITERS, 7, rng(seed))} for seed in range(80)]
    assert all(len(writers) == 7 for writers in drawn) and set().union(*drawn) == set(WRITERS)
    assert sum(map(len, partition.single_writer(WRITERS, 7, rng()))) < len(WRITERS)


@pytest.mark.parametrize("num_clients", [4, 0])
def test_single_writer_with_fewer_writers_than_clients_is_an_error(num_clients):
    with pytest.raises(ValueError, match=f"{num_clients} clients and 3 writers: the number of clients must be 1 to 3") as error:
        partition.single_writer(np.array([5, 5, 9, 2, 2, 2]), num_clients, rng())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("split", [
    lambda a: partition.iid(a, 2, rng()), lambda a: partition.dirichlet(a, 2, 1., rng(), min_size=1),
    lambda a: partition.by_writer(a, 2, rng()), lambda a: partition.single_writer(a, 2, rng()),
    lambda a: partition.few_per_class(a, 2, 1, rng()), lambda a: partition.by_subclass(a, a, 2, rng())])
def test_a_list_is_as_good_as_an_array(split):
    assert same(split([5, 9, 9, 5, 9, 5, 5, 9]), split(np.array([5, 9, 9, 5, 9, 5, 5, 9])))


# ------------------------------------------------------------------------------------------------------- FedGKT's Table 6

PRINTED = np.array([[int(number) for number in row.split()] for row in """
    144   94 1561  133 1099 1466    0    0    0    0
    327   28  264   16  354    2  100   20  200    3
      6    6  641    1  255    4    1    2  106 1723
    176  792  100   28   76  508  991  416  215    0
     84 1926    1  408  133   24  771    0    0    0
     41   46  377  541    7  235   54 1687  666    0
    134  181  505  720  123  210   44   58  663  221
     87    2  131 1325 1117  704    0    0    0    0
    178  101    5   32 1553   10  163    9  437  131
     94  125    0  147  287  100   23  217  608  279
    379  649  106   90   35  119  807  819    3   85
   1306   55  681  227  202   34    0  648    0    0
   1045   13   53    6   77   70  482    7  761  494
    731  883   15  161  387  552    4 1051    0    0
      4   97  467  899    0  407   50   64 1098  797
    264    2   93  266  412  142  806    2  243 1267""".strip().splitlines()])
TABLE_6 = PRINTED.copy()
TABLE_6[7] = np.concatenate([PRINTED[7, :4], [0], PRINTED[7, 4:9]])        # one 0 slipped to the end of the row
CIFAR_LABELS = np.random.default_rng(9).permutation(np.repeat(np.arange(10), 5000))


def table6(per_class, seed=0, num_clients=16):
    """The labels of 10 classes in some order, and their split."""
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), per_class))
    return labels, partition.fedgkt_table6(labels, num_clients, rng(seed))


def test_fedgkt_table_6_as_printed_does_not_add_up_and_with_row_7_put_right_it_does():
    """5,000 images of each class of CIFAR-10: three columns are off by what row 7 has in the wrong place."""
    off = PRINTED.sum(0) - 5000
    assert off.tolist() == [0, 0, 0, 0, 1117, 704 - 1117, -704, 0, 0, 0] and (TABLE_6.sum(0) == 5000).all()
    assert np.array_equal(partition.FEDGKT_TABLE_6, TABLE_6)


def test_fedgkt_table6_gives_each_client_exactly_the_tables_counts():
    parts = partition.fedgkt_table6(CIFAR_LABELS, 16, rng())
    assert np.array_equal(counts(CIFAR_LABELS, parts), TABLE_6)


@pytest.mark.parametrize("per_class", [5000, 500, 37])
def test_fedgkt_table6_parts_are_disjoint_exhaustive_sorted_rows(per_class):
    labels, parts = table6(per_class)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(10 * per_class))
    assert len(parts) == 16 and all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("per_class", [10_000, 4500, 500, 37])
def test_fedgkt_table6_is_proportional_on_classes_of_another_size(per_class):
    """To one sample, as two borders are rounded to half a sample each; the whole is the class."""
    labels, parts = table6(per_class)
    held = counts(labels, parts)
    assert (np.abs(held - TABLE_6 * per_class / 5000) <= 1).all() and (held.sum(0) == per_class).all()


def test_fedgkt_table6_takes_each_class_by_its_own_size():
    labels = np.repeat(np.arange(10), np.arange(100, 1100, 100))
    held = counts(labels, partition.fedgkt_table6(labels, 16, rng()))
    assert (np.abs(held - TABLE_6 * np.arange(100, 1100, 100) / 5000) <= 1).all()


def test_fedgkt_table6_whose_samples_is_drawn_from_the_generator_alone():
    (_, ours), (_, again), (_, other) = table6(500, seed=3), table6(500, seed=3), table6(500, seed=4)
    assert same(ours, again) and not any(np.array_equal(a, b) for a, b in zip(ours, other))
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    assert same(table6(500, seed=3)[1], ours) and np.array_equal(np.random.get_state()[1], before)


def test_fedgkt_table6_draws_within_a_class_from_all_of_its_samples():
    """Client 11 has 1,306 of 5,000 samples of class 0: their mean row lies within five standard errors of the middle."""
    labels = np.repeat(np.arange(10), 5000)
    rows = partition.fedgkt_table6(labels, 16, rng())[11]
    own = rows[labels[rows] == 0]
    deviation = np.sqrt((5000**2 - 1) / 12 / 1306 * (5000 - 1306) / (5000 - 1))
    assert abs(own.mean() - 4999 / 2) < 5 * deviation


def test_fedgkt_table6_changes_no_labels_and_takes_a_list():
    labels, parts = table6(50)
    before = labels.copy()
    assert same(partition.fedgkt_table6(labels.tolist(), 16, rng()), parts) and np.array_equal(labels, before)


@pytest.mark.parametrize("labels, num_clients", [
    (np.arange(1000) % 10, 15), (np.arange(1000) % 10, 17), (np.arange(1000) % 10, 0), (np.arange(1000) % 9, 16), (np.arange(1000) % 11, 16),
    (np.arange(1000) % 10 + 1, 16), (np.zeros(0, dtype=int), 16)])
def test_fedgkt_table6_is_for_16_clients_and_classes_0_to_9(labels, num_clients):
    with pytest.raises(ValueError, match="FedGKT's Table 6 is for 16 clients and 10 classes") as error:
        partition.fedgkt_table6(labels, num_clients, rng())
    assert "\n" not in str(error.value)


def test_fedgkt_table6_with_too_few_samples_is_an_error():
    with pytest.raises(ValueError, match="20 samples are too few for FedGKT's Table 6") as error:
        table6(2)
    assert "\n" not in str(error.value)
