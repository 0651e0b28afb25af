"""What `./dev image` writes, on small trees: archives that name what they hold, and refusals."""

import io
import json
import pathlib
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "image"))

import build  # noqa: E402
import builder  # noqa: E402
import cuda  # noqa: E402
import debian  # noqa: E402
from archive import image_config, write_archive  # noqa: E402
from tree import Tree, digest_of, layer  # noqa: E402

TAG = "localhost/thing:1"


def small_tree(text="hello\n"):
    tree = Tree({"/lib": "usr/lib"})
    tree.text("/lib/b.so", text, 0o755)
    tree.link("/lib/a.so", "b.so")
    tree.directory("/tmp", 0o1777)
    return tree


def archive_of(*layers):
    stream = io.BytesIO()
    config = image_config(layers, "1970-01-01T00:00:00Z", "amd64", {"User": "1:1"})
    write_archive(stream, layers, config, [TAG], {})
    return stream.getvalue()


def files_of(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


def test_both_formats_of_an_archive_name_the_same_blobs():
    parts = [layer(small_tree(), "one"), layer(small_tree("other\n"), "two")]
    files = files_of(archive_of(*parts))
    blobs = {name: blob for name, blob in files.items() if name.startswith("blobs/")}
    assert all(name == "blobs/" + digest_of(blob).replace(":", "/") for name, blob in blobs.items())
    index = json.loads(files["index.json"])["manifests"][0]
    assert index["annotations"]["org.opencontainers.image.ref.name"] == TAG
    manifest = json.loads(blobs["blobs/" + index["digest"].replace(":", "/")])
    docker = json.loads(files["manifest.json"])[0]
    assert docker["RepoTags"] == [TAG]
    assert [entry["digest"] for entry in manifest["layers"]] == [part.digest for part in parts]
    assert docker["Layers"] == ["blobs/" + part.digest.replace(":", "/") for part in parts]
    config = json.loads(blobs[docker["Config"]])
    assert config["rootfs"]["diff_ids"] == [part.diff_id for part in parts]


def test_equal_trees_make_equal_bytes_in_whatever_order_they_were_filled():
    turned = Tree({"/lib": "usr/lib"})
    turned.directory("/tmp", 0o1777)
    turned.link("/lib/a.so", "b.so")
    turned.text("/lib/b.so", "hello\n", 0o755)
    assert archive_of(layer(turned, "one")) == archive_of(layer(small_tree(), "one"))


def test_paths_go_through_the_links_of_the_top():
    assert sorted(small_tree().entries) == ["/lib", "/tmp", "/usr", "/usr/lib", "/usr/lib/a.so", "/usr/lib/b.so"]


def test_a_layer_leaves_out_what_lies_below():
    upper = Tree({"/lib": "usr/lib"})
    upper.text("/lib/c.so", "c")
    stream = io.BytesIO()
    upper.write_tar(stream, without=small_tree())
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as tar:
        assert tar.getnames() == ["usr/lib/c.so"]


def test_two_things_at_one_path_are_refused():
    with pytest.raises(ValueError, match="/usr/lib/b.so"):
        small_tree().text("/lib/b.so", "another")
    with pytest.raises(ValueError, match="not a directory"):
        small_tree().text("/usr/lib/b.so/inside", "x")


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(builder.Unusable, match="config.json"):
        build.model_tree(tmp_path)


def test_files_that_no_package_owns_or_declares_so_are_refused(tmp_path):
    stray = tmp_path / "libstray.so"
    stray.write_bytes(b"x")
    with pytest.raises(builder.Unusable, match="no Debian package owns .*libstray.so"):
        debian.owners_of([str(stray)])
    with pytest.raises(builder.Unusable, match="not what package stray installed"):
        debian.verify("stray", str(stray), stray, {str(stray)[1:]: "0" * 32})


def test_an_image_over_the_limit_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(build, "UNPACKED_BYTES_MAX", 1_000_000)
    # This interpreter stands for the binary: it, too, needs libraries of packages.
    monkeypatch.setattr(sys, "argv", ["image", "--baton", "/usr/bin/python3", "--without-model", "--out", "/nowhere"])
    assert build.main() == 1
    assert "MB are allowed" in capsys.readouterr().err


def compiled(path, needs=(), rpath=""):
    """A shared library that does nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-nostdlib", "-o", path, "-xc", "/dev/null", "-xnone", "-Wl,--no-as-needed",
                    f"-Wl,-soname,{path.name}", *([f"-Wl,-rpath,{rpath}"] if rpath else []), *needs], check=True)
    return path


@pytest.fixture
def site(tmp_path):
    """Wheels as `./dev cuda` unpacks them, with a little of each kind."""
    folder = tmp_path / "site"
    torch, nvidia = folder / "torch/lib", folder / "nvidia"
    compiled(torch / "libunused.so")
    compiled(torch / "libtorch.so", [compiled(nvidia / "nccl/lib/libnccl.so.2")], "$ORIGIN/../../nvidia/nccl/lib")
    driver = compiled(tmp_path / "driver/libcuda.so.1")
    compiler = compiled(nvidia / "cu13/lib/libnvrtc.so.13")
    compiled(torch / "libcaffe2_nvrtc.so", [driver, compiler], "$ORIGIN/../../nvidia/cu13/lib")
    for name in ("cu13/lib/libnvrtc-builtins.so.13.0", "cu13/lib/libnvrtc-builtins.alt.so.13.0",
                 "cudnn/lib/libcudnn_ops.so.9", "cudnn/lib/libother.so.9"):
        compiled(nvidia / name)
    for name in ("torch/include/torch.h", "torch-2.0.dist-info/licenses/LICENSE"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x", encoding="ascii")
    return folder.resolve()


def test_of_the_wheels_there_is_what_is_linked_or_loaded_by_name(site, tmp_path):
    library = site / "torch/lib/libtorch.so"
    plugin = compiled(tmp_path / "plugin.so", [library, f"-Wl,-rpath-link,{site}/nvidia/nccl/lib"], library.parent)
    tree = Tree()
    cuda.add_wheels(tree, plugin, site)
    files = {path for path, entry in tree.entries.items() if entry.kind == "file"}
    assert files == {
        "/etc/debian_version", "/usr/share/doc/baton/cuda/torch-2.0.dist-info/licenses/LICENSE",
        *(f"/usr/lib/baton/cuda/{name}" for name in (
            "torch/lib/libtorch.so", "nvidia/nccl/lib/libnccl.so.2", "torch/lib/libcaffe2_nvrtc.so",
            "nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
            "nvidia/cudnn/lib/libcudnn_ops.so.9"))}
    assert debian.libraries_of(plugin, without=site) == [], "Debian is not asked for them"


def test_wheels_or_a_plugin_of_another_kind_are_refused(site, tmp_path):
    other = compiled(tmp_path / "plugin.so")
    with pytest.raises(builder.Unusable, match="not linked with the libraries of .*--with-cuda"):
        cuda.add_wheels(Tree(), other, site)
    (site / "nvidia/cudnn/lib/libcudnn_ops.so.9").unlink()
    with pytest.raises(builder.Unusable, match="has no nvidia/cudnn"):
        cuda.add_wheels(Tree(), other, site)


def test_the_containerfile_runs_containers_as_the_builder_does():
    said = {}
    text = (ROOT / "deploy/image/Containerfile").read_text(encoding="utf-8")
    for line in text.partition("FROM scratch")[2].splitlines():
        instruction, _, value = line.partition(" ")
        said[instruction] = value
    assert json.loads(said["ENTRYPOINT"]) == build.RUN["Entrypoint"]
    assert json.loads(said["CMD"]) == build.RUN["Cmd"]
    assert [said["ENV"]] == build.RUN["Env"]
    assert said["EXPOSE"].split() == sorted(build.RUN["ExposedPorts"])
    assert (said["USER"], said["STOPSIGNAL"], said["WORKDIR"]) == (
        build.RUN["User"], build.RUN["StopSignal"], build.RUN["WorkingDir"])


def test_a_root_for_the_containerfile_holds_what_the_layers_do(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["image", "--baton", "/usr/bin/python3", "--root", str(tmp_path / "root")])
    assert build.main() == 0
    root = tmp_path / "root"
    assert (root / "usr/bin/baton").stat().st_mode & 0o777 == 0o755
    assert (root / "models/austen/config.json").is_file()
    assert (root / "lib").is_symlink() and (root / "lib64").is_symlink()
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    capsys.readouterr()
    assert build.main() == 1
    assert "is not empty" in capsys.readouterr().err
