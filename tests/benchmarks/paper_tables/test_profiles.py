"""Profiles of the models of the paper's figures."""

import dataclasses

from benchmarks.paper_tables.points import Point
from benchmarks.paper_tables.profiles import medians, profile_files, profiles_of
from divisible import LayerCost, Profile


def measured(*seconds, samples=10):
    costs = [LayerCost(s, 2 * s, 3 * s, output_bytes=8) for s in seconds]
    return Profile(costs[:-1], samples, loss=costs[-1])


def test_a_burst_of_noise_is_not_in_a_profile():
    quiet = measured(1.0, 2.0, 0.5)
    assert medians([quiet, measured(9.0, 2.0, 0.5), measured(1.0, 7.0, 4.0)]) == quiet


def test_profiles_that_are_there_are_not_measured(tmp_path):
    point = Point("mlp", 64, 40, 4, 1)
    files = profile_files(tmp_path, point)
    assert sorted(files) == [1, 2, 8, 40]
    for samples, file in files.items():
        file.parent.mkdir(exist_ok=True)
        measured(1.0, 2.0, 0.5, samples=samples).save(file)
    assert [found.n_samples for found in profiles_of(tmp_path, point)] == [1, 2, 8, 40]


def test_profiles_are_of_one_arithmetic(tmp_path):
    point = Point("mlp", 64, 40, 4, 1)
    folders = {
        file.parent.relative_to(tmp_path)
        for kernels, provider in (("off", "numpy"), ("on", "blas"), ("on", "onednn"))
        for file in profile_files(
            tmp_path, dataclasses.replace(point, kernels=kernels, provider=provider)
        ).values()
    }
    assert len(folders) == 3
    assert sorted(profile_files(tmp_path, point, quick=True)) == [2, 8]
