# Installs jaxformer where it is missing. SOURCE is a wheel, a zip or a clone of its repository, a
# file on Google Drive, such as "/content/drive/MyDrive/jaxformer.zip", or "git+https://...".
# Without SOURCE, it is a file jaxformer*.whl or jaxformer*.zip here, or one that Colab uploads.
import importlib.util
import pathlib
import subprocess
import sys

SOURCE = ""


def find_source():
    if SOURCE.startswith("/content/drive/"):
        from google.colab import drive

        drive.mount("/content/drive")

    here = [*pathlib.Path().glob("jaxformer*.whl"), *pathlib.Path().glob("jaxformer*.zip")]
    if SOURCE or here:
        return SOURCE or str(here[0])
    if "google.colab" not in sys.modules:
        return ""

    from google.colab import files

    print("Upload a wheel or a zip of jaxformer. In a clone, uv build makes the wheel in dist/.")
    return next(iter(files.upload()), "")


if importlib.util.find_spec("jaxformer") is None:
    source = find_source()
    if "://" not in source:
        if not source or not pathlib.Path(source).exists():
            sys.exit("No jaxformer yet: set SOURCE above to its wheel, zip, clone or git address.")
        source = pathlib.Path(source).absolute().as_uri()
    package = f"jaxformer[plots,vision] @ {source}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=True)
