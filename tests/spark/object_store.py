"""An object store on loopback (moto's), for tests of input and output by URI."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from moto.server import ThreadedMotoServer
from pyarrow import fs

from tidegate.config.locations import Uri, location

__all__ = ["KEY", "SECRET", "ObjectStore", "object_store"]

KEY, SECRET = "AKIATIDEGATETEST", "never-to-be-shown"


class ObjectStore:
    """A bucket, empty at first."""

    def __init__(self, host: str, port: int) -> None:
        self._query = f"scheme=http&endpoint_override={host}%3A{port}&region=us-east-1"
        self.filesystem, _ = fs.FileSystem.from_uri(f"s3://bucket/?{self._query}&allow_bucket_creation=true")
        self.filesystem.create_dir("bucket")

    def uri(self, path: str, *, scheme: str = "s3") -> Uri:
        """Return the URI of what is called `path` in the bucket."""
        found = location(f"{scheme}://bucket/{path}?{self._query}")
        assert isinstance(found, Uri)
        return found

    def put(self, directory: Path, path: str) -> None:
        """Copy a directory into the bucket."""
        fs.copy_files(str(directory), f"bucket/{path}", destination_filesystem=self.filesystem)

    def names(self, path: str) -> list[str]:
        """Return the names of all objects below `path`."""
        selector = fs.FileSelector(f"bucket/{path}", recursive=True, allow_not_found=True)
        found = self.filesystem.get_file_info(selector)
        return sorted(info.path.removeprefix(f"bucket/{path}/") for info in found if info.is_file)


@contextlib.contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Give one that runs in threads of this process; credentials are in the environment meanwhile."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    before = dict(os.environ)
    os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield ObjectStore(*server.get_host_and_port())
    finally:
        server.stop()
        os.environ.clear()
        os.environ.update(before)
