"""The settings of each type of checkpoint storage. `checkpoint_storage.type` chooses one."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from .fields import CLUSTER, REST, RETIRED, SECRET, expects, needed

CheckpointSink = Annotated[int, Meta(ge=0)]
Prefix = Annotated[
    str,
    Meta(pattern=r"^(?!(.*/)?\.\.(/|$))"),
    expects("a path within the bucket, without '..' in it"),
]


class StorageConfig(Struct, frozen=True, kw_only=True):
    """The settings that all types share: which checkpoints are kept when the experiment ends.

    Without a type, the storage is the store's own directory.
    """

    save_experiment_best: CheckpointSink = 0
    """How many of the experiment's best checkpoints to keep."""
    save_trial_best: CheckpointSink = 1
    """How many of each trial's best checkpoints to keep."""
    save_trial_latest: CheckpointSink = 1
    """How many of each trial's latest checkpoints to keep."""

    @property
    def type(self) -> str | None:
        """The name under which the storage is registered, or None for the store's own directory."""
        tag = self.__struct_config__.tag
        return None if tag is None else str(tag)


class SharedFs(StorageConfig, frozen=True, tag="shared_fs"):
    """A directory that every machine of the experiment sees."""

    host_path: Annotated[str, needed("name the directory")]
    """The directory."""
    storage_path: str | None = None
    """Where in it checkpoints go: a relative path, or one below `host_path`."""
    propagation: Annotated[str, CLUSTER] = "rprivate"
    """How the mount behaves in a container."""
    container_path: Annotated[str, RETIRED] | None = None
    """Where a container would see the directory."""
    checkpoint_path: Annotated[str, RETIRED] | None = None
    """What `storage_path` was once called."""
    tensorboard_path: Annotated[str, RETIRED] | None = None
    """Where event files once went."""


class Directory(StorageConfig, frozen=True, tag="directory"):
    """A directory, as it is named."""

    container_path: Annotated[str, needed("name the directory")]
    """The directory."""


class S3(StorageConfig, frozen=True, tag="s3"):
    """Amazon S3 and whatever speaks its protocol. Needs `s3fs`."""

    bucket: Annotated[str, needed("name the bucket")]
    """The bucket."""
    access_key: Annotated[str, SECRET] | None = None
    """The access key. Without it the environment's credentials are used."""
    secret_key: Annotated[str, SECRET] | None = None
    """The secret key."""
    endpoint_url: str | None = None
    """The server, where it is not Amazon's."""
    prefix: Prefix | None = None
    """Where in the bucket checkpoints go."""


class Gcs(StorageConfig, frozen=True, tag="gcs"):
    """Google Cloud Storage. Needs `gcsfs` and the environment's credentials."""

    bucket: Annotated[str, needed("name the bucket")]
    """The bucket."""
    prefix: Prefix | None = None
    """Where in the bucket checkpoints go."""


class Azure(StorageConfig, frozen=True, tag="azure"):
    """Azure Blob Storage. Needs `adlfs`."""

    container: Annotated[str, needed("name the container")]
    """The container."""
    connection_string: Annotated[str, SECRET] | None = None
    """The connection string. Instead of `account_url` and `credential`."""
    account_url: str | None = None
    """The account's URL."""
    credential: Annotated[str, SECRET] | None = None
    """The credential that goes with `account_url`."""


class Hdfs(StorageConfig, frozen=True, tag="hdfs"):
    """The Hadoop file system. Needs `pyarrow`."""

    hdfs_url: Annotated[str, needed("give the name node's URL, such as http://namenode:50070")]
    """The name node."""
    hdfs_path: Annotated[
        str, Meta(pattern="^/"), expects("an absolute path"), needed("give an absolute path")
    ]
    """Where checkpoints go."""
    user: str | None = None
    """The user to act as."""


class UnknownStorage(Struct, frozen=True):
    """A plugin's storage, read without the plugin. Its keys are kept as written."""

    options: Annotated[dict[str, Any], REST] = {}


STORAGES: dict[str, type[Struct]] = {
    "azure": Azure,
    "directory": Directory,
    "gcs": Gcs,
    "hdfs": Hdfs,
    "s3": S3,
    "shared_fs": SharedFs,
}
