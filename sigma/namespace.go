package sigma

import (
	"context"
	"io"
	"os"
	"time"
)

// Namespace is one realm's tree as programs use it: absolute paths in, answers out (000 Fig 4-1).
// It follows symlinks (at most 40), goes through endpoints to the servers behind them, and resolves
// ~local and ~any. Safe for concurrent use.
type Namespace interface {
	// Get returns a whole file. KindTooBig beyond GetMax: use Open.
	Get(ctx context.Context, path string) ([]byte, FileID, error)
	// Put makes or replaces a file atomically; the directory must exist. Files beyond what one
	// message carries are streamed; they are still atomic on servers that say so (s3, ux).
	Put(ctx context.Context, path string, data []byte, o PutOptions) (FileID, error)
	// Open opens a file or directory for reading or writing.
	Open(ctx context.Context, path string, f OpenFlags) (Handle, error)
	// Create makes a file and opens it for writing.
	Create(ctx context.Context, path string, f OpenFlags, perm uint32) (Handle, error)
	Stat(ctx context.Context, path string) (Stat, error)
	// Lstat is Stat that does not follow a symlink or endpoint at the end.
	Lstat(ctx context.Context, path string) (Stat, error)
	SetStat(ctx context.Context, path string, c StatChange) error
	// ReadDir lists a directory, sorted by name.
	ReadDir(ctx context.Context, path string) ([]DirEntry, error)
	Mkdir(ctx context.Context, path string, perm uint32) error
	// MkdirAll makes the directory and all its parents; it may exist.
	MkdirAll(ctx context.Context, path string, perm uint32) error
	Symlink(ctx context.Context, target, path string) error
	ReadLink(ctx context.Context, path string) (string, error)
	Remove(ctx context.Context, path string) error
	// RemoveAll removes the file or the directory with all in it; it is no error if there is none.
	// It does not go through links.
	RemoveAll(ctx context.Context, path string) error
	Rename(ctx context.Context, oldPath, newPath string) error
	// Watch returns when the version of the file is beyond since; see Watcher.
	Watch(ctx context.Context, path string, since Version) (Version, error)
	// WaitFor returns once path exists (OpenWatch of 000 Fig 4-1).
	WaitFor(ctx context.Context, path string) error
	Call(ctx context.Context, path, method string, payload []byte) ([]byte, error)
	// AbsPath resolves ~local and symlinks on the way, so that the result means the same on every
	// machine (001 §3.3).
	AbsPath(ctx context.Context, path string) (string, error)
	// AdvanceEpoch adds one to the epoch in the file at path, which is made if there is none, and
	// returns the fence of the new epoch (000 §3.6).
	AdvanceEpoch(ctx context.Context, path string) (Fence, error)
	// FenceAtEpoch makes all later requests for dir and what is under it carry f, also to other
	// servers: KindStale as soon as one of a newer epoch came before. An f without a name ends
	// that.
	FenceAtEpoch(ctx context.Context, f Fence, dir string) error
	// Lease makes a lease that is renewed until revoke is called or the program ends.
	Lease(ctx context.Context, ttl time.Duration) (id LeaseID, revoke func(context.Context) error, err error)
	// Mount makes path2 another name for path1 (000 Fig 4-1: mount path1 at path2), for this
	// program alone: its children and others see what they saw. What path1 is in turn by a mount
	// before counts as it is now; links are looked up with all mounts. Neither needs to be there.
	// KindPermission below /sys and /proc, KindBusy beyond 64 mounts.
	Mount(ctx context.Context, path1, path2 string) error
}

// GetMax is the largest file that Get returns.
const GetMax = 64 * MiB

// Handle is an open file with a position, as os.File is. Read, Write and Seek share the position
// and are not safe for concurrent use; ReadAt and WriteAt are.
type Handle interface {
	io.ReadWriteCloser
	io.Seeker
	io.ReaderAt
	io.WriterAt
	Stat() (Stat, error)
	// Sync makes what was written durable (File.Sync).
	Sync() error
	// File returns a file descriptor with the file's bytes if the server passes one, else
	// KindUnsupported: for reading, or for writing too if nobody else sees the file yet
	// (OpenHidden), which is then to be closed before the handle is used again or closed
	// (FilePasser).
	File() (*os.File, error)
	// Discard releases the handle as Close does, but of a file that nobody sees yet (OpenHidden, an
	// object) it leaves nothing. To be called instead of Close.
	Discard()
}
