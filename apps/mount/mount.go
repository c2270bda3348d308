// Package mount shows a realm's tree to Linux as a file system (FUSE): the names, files and links
// that a program of the realm sees, for programs that know nothing of sigmaOS.
//
// It promises that
//   - an error is the errno that its kind stands for (errno.go), and a close tells of writes that
//     failed;
//   - nothing hangs: every request ends within opTimeout, but reads of what waits by its nature
//     (pipes, logs), and those end with a signal. While the system cannot be reached, requests fail
//     as EHOSTUNREACH after reachTimeout, and go on when it can;
//   - what changes elsewhere is seen within CacheTime, and what changes through the mount at once;
//   - no link leads out of the mount, whatever a tenant made it say (link.go), unless links are
//     trusted;
//   - a tenant's tree without an end, or within itself, ends at a bound (inodes.go), and what the
//     mount remembers has one;
//   - set-user-ID bits, devices and other users' access are off unless the caller of Mount switches
//     the last of them on.
//
// It assumes that the kernel checks permissions (default_permissions): the provider, as whom it
// asks sigmaOS, is refused nothing.
//
// Locks: node.naming, open.mu, node.mu, then handles.mu, inodes.mu or realm.mu. While a server is
// asked none is held but node.naming and open.mu of the file that is asked about.
package mount

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
)

const (
	// CacheTime is how long the kernel answers from what it remembers of names and attributes. A
	// program that polls, as tail -f does every second, sees a change within two.
	CacheTime = time.Second
	// opTimeout bounds a request to a server that says nothing. It is longer than a change of
	// leader or a restart takes.
	opTimeout = 30 * time.Second
	// ioSize is the most that the kernel asks for, or writes, at once; its own limit.
	ioSize = 1 << 20
	// backgroundMax is how many read-aheads and write-backs the kernel has under way: 64 MiB of
	// requests at most, of which each is answered in pieces.
	backgroundMax = 64
	// keptMax bounds the names that were removed while they are open; the file that does not fit is
	// not removed.
	keptMax = 64 * sigma.MiB
	// Type is the file system type that /proc/self/mountinfo shows.
	Type = "fuse.sigma"
)

// Config says what to mount where.
type Config struct {
	Dir        string // an absolute path without links: links that are absolute in the realm lead here
	Path       string // in the realm: what is shown
	Source     string // what mount(8) shows as the device
	AllowOther bool   // other users than the one who mounts may use it
	ReadOnly   bool
	Objects    []string // names at the realm's root behind which every close publishes (object.go)
	// TrustLinks shows targets of links as they were written, which lead wherever that is on this
	// host. Only who trusts everybody that writes or serves what is mounted sets it.
	TrustLinks bool
	// UID and GID own all files.
	UID, GID uint32
	// Host mounts. Without one fusermount3 does, as it does for an ordinary user, and all reads go
	// through this process.
	Host Host
	// Connect connects to the realm, now and whenever the connection was lost. How long that may
	// take its context says.
	Connect func(ctx context.Context) (*sdk.Client, error)
	// Lost is called once when the system could not be reached for a while (abandonAfter).
	Lost func()
}

// Mount is a mounted file system. Its methods are safe for concurrent use.
type Mount struct {
	cfg       Config
	server    *fuse.Server
	realm     *realm
	handles   *handles
	kept      *memfs.Tree // names that were removed while they are open (removed.go)
	inodes    *inodes
	created   atomic.Uint64 // how many nodes were made
	tenants   bool          // a program of the realm serves what is mounted, not the system
	uid, gid  uint32
	canPass   atomic.Bool // the kernel reads passed descriptors by itself
	backings  sync.Map    // by which backing file the answer to a request says to read: <-chan struct{} -> int32
	unpassing sync.Map    // servers that pass no descriptors: string -> struct{}
	names     []string    // of cfg.Path
}

// New mounts. It returns when the file system can be used.
func New(ctx context.Context, cfg Config) (*Mount, error) {
	const op = "mount.New"
	names, err := sigma.ParsePath(cfg.Path)
	if err != nil {
		return nil, err
	}
	m := &Mount{cfg: cfg, names: names, handles: newHandles(), inodes: newInodes(),
		kept: memfs.New(memfs.Config{SizeMax: keptMax}), uid: cfg.UID, gid: cfg.GID}
	m.realm = newRealm(cfg)
	l, err := m.realm.get(ctx)
	if err != nil {
		return nil, err
	}
	st, err := l.root.Stat(ctx)
	if err == nil && st.ID.Kind != sigma.KindDir {
		err = sigma.PathError(op, sigma.KindNotDir, cfg.Path)
	}
	if err != nil {
		m.realm.close()
		return nil, err
	}
	m.tenants = !l.isSystems(ctx, names)
	root := &node{m: m, identity: identity{kind: sigma.KindDir}}
	second := CacheTime
	o := &fs.Options{EntryTimeout: &second, AttrTimeout: &second, NegativeTimeout: &second, UID: m.uid, GID: m.gid,
		NullPermissions: true,
		RootStableAttr:  &fs.StableAttr{Ino: fuse.FUSE_ROOT_ID},
		MountOptions: fuse.MountOptions{AllowOther: cfg.AllowOther, FsName: cfg.Source, Name: strings.TrimPrefix(Type,
			"fuse."), MaxWrite: ioSize, MaxReadAhead: ioSize, MaxBackground: backgroundMax,
			DisableXAttrs: true, DisableReadDirPlus: true, ExtraCapabilities: fuse.CAP_ATOMIC_O_TRUNC,
			Options: []string{"default_permissions"}}}
	if cfg.ReadOnly {
		o.Options = append(o.Options, "ro")
	}
	if err := m.serve(fs.NewNodeFS(root, o), o.MountOptions); err != nil {
		m.realm.close()
		return nil, err
	}
	m.inodes.ended.Go(m.inodes.trim)
	m.canPass.Store(cfg.Host != nil && m.server.KernelSettings().Flags64()&fuse.CAP_PASSTHROUGH != 0)
	return m, nil
}

// serve mounts, and begins to serve.
func (m *Mount) serve(files fuse.RawFileSystem, o fuse.MountOptions) (err error) {
	at := m.cfg.Dir
	if m.cfg.Host != nil {
		device, err := m.cfg.Host.Attach()
		if err != nil {
			return err
		}
		defer device.Close()
		fd, err := unix.FcntlInt(device.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return mountError(m.cfg.Dir, err)
		}
		at = fmt.Sprintf("/dev/fd/%d", fd) // go-fuse takes it from there
	}
	if m.server, err = fuse.NewServer(&backed{files, m}, at, &o); err != nil {
		return mountError(m.cfg.Dir, err)
	}
	go m.server.Serve()
	if err := m.server.WaitMount(); err != nil {
		return mountError(m.cfg.Dir, err)
	}
	return nil
}

func mountError(dir string, err error) error {
	e := &sigma.Error{Op: "mount.New", Path: dir, Kind: sigma.KindOf(err), Msg: "cannot mount here", Err: err}
	if _, serr := os.Stat("/dev/fuse"); serr != nil {
		e.Hint = "there is no /dev/fuse: load the module with: modprobe fuse; sigma doctor tells more"
	} else if os.Geteuid() != 0 {
		e.Hint =
			"an ordinary user needs the program fusermount3 (Debian: apt-get install fuse3), and user_allow_other in " +
				"/etc/fuse.conf for --allow-other"
	}
	return e
}

// Wait returns when the file system has been unmounted, by whomever.
func (m *Mount) Wait() {
	m.server.Wait()
	m.inodes.close()
	m.realm.close()
	m.kept.Close()
}

// Unmount unmounts what fusermount3 mounted. EBUSY, as KindBusy, says that somebody uses it.
func (m *Mount) Unmount() error {
	return sigma.Wrap("mount.Unmount", m.cfg.Dir, m.server.Unmount())
}

// bounded is the context of a request about an ordinary file. A signal does not end it: programs do
// not expect EINTR of files.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
}

// pathOf is the realm's path of a place in the mount.
func (m *Mount) pathOf(below string) string {
	return path.Join(sigma.JoinPath(m.names...), below)
}
