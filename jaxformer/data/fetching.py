"""Downloads and prepares the public corpora of the catalog."""

import errno
import pathlib
import shutil

from jaxformer.data.catalog import OriginFile, PublicCorpus, is_present
from jaxformer.data.download import DownloadError, download
from jaxformer.errors import UserError
from jaxformer.files import data_directory, lock_folder, write_file


class MissingFilesError(UserError):
    """Files of a corpus that could not be downloaded.

    Attributes:
      folder: Folder into which the files belong.
      files: The files.
    """

    def __init__(self, message: str, folder: pathlib.Path, files: list[OriginFile]) -> None:
        super().__init__(message)
        self.folder, self.files = folder, files


def fetch(corpus: PublicCorpus) -> pathlib.Path:
    """Returns the folder of a corpus, which is downloaded and prepared if it is not there.

    Files that are in the folder of downloads already are used, once their hashes are right.

    Raises:
      MissingFilesError: A file cannot be downloaded.
      UserError: A file is not what is expected, or another process is fetching the same corpus.
      OSError: A file cannot be written.
    """
    folder, downloads = data_directory() / corpus.folder, data_directory() / corpus.downloads
    if is_present(corpus):
        return folder
    with lock_folder(downloads) as alone:
        if not alone:
            raise UserError(f"{downloads}: another process is writing here; wait for its end")
        # Files that are used as they are may have been moved there before an interruption.
        as_they_are = corpus.prepare is None
        missing = [
            file for file in corpus.origin if not (as_they_are and (folder / file.name).exists())
        ]
        for number, file in enumerate(missing):
            _fetch_file(downloads, file, missing[number:])
        if corpus.prepare is None:
            folder.mkdir(parents=True, exist_ok=True)
            for file in missing:
                _move(downloads / file.name, folder / file.name)
        else:
            try:
                prepared = corpus.prepare(downloads)
            except UserError as error:
                hint = "delete this file and run the same command again"
                raise UserError(f"{error}; {hint}") from None
            for name, content in prepared.items():
                write_file(folder / name, content)
    return folder


def _move(source: pathlib.Path, target: pathlib.Path) -> None:
    """Renames a file, or copies it if the target is on another disk."""
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        partial = target.with_name(f"{target.name}.partial")
        shutil.copyfile(source, partial)
        partial.replace(target)
        source.unlink()


def _fetch_file(folder: pathlib.Path, file: OriginFile, left: list[OriginFile]) -> None:
    path = folder / file.name
    try:
        if not path.exists():
            download(file.url, path, largest=file.largest, checksum=file.checksum)
        elif file.checksum is not None:
            file.checksum.check(path)
    except DownloadError as error:
        missing = [file for file in left if not (folder / file.name).exists()]
        raise MissingFilesError(
            f"{error}; run the same command again when there is a network, or put the files into "
            f"{folder} and run it then",
            folder,
            missing,
        ) from None
    except UserError as error:
        hint = f"; delete it and get it again from {file.url}" if path.exists() else ""
        raise UserError(f"{error}{hint}") from None
