"""A run that resumes on other devices and another mesh ends like one that stayed on one device."""

import math

import pytest

from ..profiles import by_profile
from . import training_process as runs

MESHES = [{"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}, {"mesh.fsdp": 4}, {"mesh.tensor": 2}]


@pytest.mark.ci
@pytest.mark.parametrize("mesh", by_profile(MESHES[:1], nightly=MESHES), ids=str)
def test_resumes_on_other_devices_and_meshes(mesh, tmp_path, tmp_path_factory):
    whole, folder = runs.whole_run(tmp_path_factory), tmp_path / "moved"
    runs.cut_back(whole, folder, 40)
    devices = math.prod(mesh.values())
    codes, (errors,) = runs.finish(
        runs.start_training(folder, devices=devices, **runs.WHOLE | mesh)
    )
    assert codes == [0], errors
    assert "resumed from step 40" in errors
    assert f"on {devices} cpu devices" in errors
    runs.assert_close_result(runs.result(folder), runs.result(whole))
