// Package snapshots saves the names of all realms, or of one, to a file, and restores them.
package snapshots

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/hostdir"
	"sigmaos.dev/wire/sigmap"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newSnapshotCommand(a),
	}
}

// snapshotTries is how often a snapshot is begun again when the named that takes it is replaced.
const snapshotTries = 4

type snapshotJSON struct {
	File  string `json:"file"`
	Keys  uint64 `json:"keys"` // of the store of names
	Bytes int64  `json:"bytes"`
}

func newSnapshotCommand(a *app) *cobra.Command {
	return cli.Parent("snapshot", "Save and restore the names of all realms",
		`A snapshot is the names of all realms as they were at one moment: directories, small
files, links, and the record of the machines. Objects (/s3) and scratch files (/ux) are
files below DATA, and saved as files are.`,
		newSnapshotSaveCommand(a), newSnapshotRestoreCommand(a))
}

func newSnapshotSaveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "save [--realm NAME] FILE",
		Short: "Save the names of all realms, or of one, to a file",
		Long: `Save the names of all realms, as they are at one moment, to FILE, which is replaced
once the snapshot is complete and its checksum is right. It has every change that was
acknowledged before. Work goes on meanwhile.

With --realm FILE has the names of one realm: directories, files, links and endpoints,
but no ephemeral ones, which live by their holders.`,
		Example: `  sudo sigma snapshot save /backup/names.$(date +%F)
  sudo sigma snapshot save --realm team-a /backup/team-a.names`,
		Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			realm := sigma.RealmID("")
			if cli.RealmGiven(cmd) {
				realm = sigma.RealmID(a.Realm)
			}
			return a.snapshotSave(cmd.Context(), args[0], realm)
		},
	}
}

func newSnapshotRestoreCommand(a *app) *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use:   "restore [--replace | --realm NAME] FILE",
		Short: "Make the names of a stopped system those of a snapshot, or a new realm of one",
		Long: `Check FILE, and have the system on DATA, which must be stopped, begin with its names
at the next "sigma up". It then has one control machine, this one, whichever decided when
the snapshot was taken; the others are no machines of it any more and join again with a
fresh DATA. Copy directories s3d and dbd back into DATA before "up", which gives them to
the users of their services.

A DATA that had a system before stays the machine that it was. Its names are kept aside
in DATA/named/etcd.old, and replaced only with --replace. On a fresh DATA a new system
begins with the names of the old; machines must join it anew.

With --realm FILE is the snapshot of one realm, the system runs, and a realm NAME is
made with its names. There must be none of that name.`,
		Example: `  sudo sigma snapshot restore /backup/names.2026-11-20 --data /srv/sigma
  sudo sigma up --data /srv/sigma --detach
  sudo sigma snapshot restore --realm team-a2 /backup/team-a.names`,
		Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cli.RealmGiven(cmd) {
				return a.restoreRealm(cmd.Context(), args[0], sigma.RealmID(a.Realm))
			}
			return a.snapshotRestore(cmd.Context(), args[0], replace)
		},
	}
	cmd.Flags().BoolVar(&replace, "replace", false, "also if there are names already")
	return cmd
}

// snapshotSave saves one realm, or all ("").
func (a *app) snapshotSave(ctx context.Context, file string, realm sigma.RealmID) error {
	c, err := a.ClientOf(ctx, sigma.SystemRealm)
	if err != nil {
		return err
	}
	names, err := cli.ServiceOf(ctx, c, sigmap.FileNames)
	if err != nil {
		return err
	}
	var keys uint64
	var size int64
	for try := 1; ; try++ {
		keys, size, err = a.snapshotOnce(ctx, names, file, realm)
		kind := sigma.KindOf(err)
		again := kind == sigma.KindStale || kind == sigma.KindLost || kind == sigma.KindUnavailable
		if err == nil || !again || try == snapshotTries {
			break
		}
		a.Remark("beginning again: %v", err)
	}
	if err != nil {
		return err
	}
	what := "key"
	if realm != "" {
		what = "name"
	}
	return a.say(snapshotJSON{file, keys, size}, "%s: %s, %v", file, cli.Count(int(keys), what), sigma.Bytes(size))
}

// say prints what was done, as JSON or in words.
func (a *app) say(s snapshotJSON, format string, args ...any) error {
	if a.JSON {
		return a.PrintJSON(s)
	}
	_, err := fmt.Fprintf(a.Out, format+"\n", args...)
	return err
}

// snapshotOnce writes one snapshot beside file, and puts it there when it is whole.
func (a *app) snapshotOnce(ctx context.Context, names sigma.Caller, file string, realm sigma.RealmID) (keys uint64,
	size int64, err error) {
	s, err := sigmap.CallSnapshotOpen.Ask(ctx, names, realm)
	if err != nil {
		return 0, 0, err
	}
	defer sigmap.CallSnapshotClose.Tell(context.WithoutCancel(ctx), names, s.Number)
	out, err := hostdir.Create(file, 0o600) // names may hold secrets
	if err != nil {
		return 0, 0, datadir.Explain(file, err)
	}
	defer out.Drop()
	sum := &tailSum{sum: sha256.New()}
	if size, err = a.copySnapshot(ctx, names, s.Number, io.MultiWriter(out, sum)); err != nil {
		return 0, 0, err
	}
	if !sum.right() {
		return 0, 0, sigma.Errorf("sigma.snapshot", sigma.KindLost, "the snapshot's checksum is wrong")
	}
	if err = out.Sync(); err == nil {
		err = out.Commit()
	}
	if err != nil {
		return 0, 0, datadir.Explain(file, err)
	}
	return s.Keys, size, nil
}

func (a *app) copySnapshot(ctx context.Context, names sigma.Caller, number uint64, w io.Writer) (size int64,
	err error) {
	bar := a.ProgressBytes("saving names", 0)
	defer bar.Done()
	for {
		piece, err := sigmap.CallSnapshotRead.Ask(ctx, names, sigmap.SnapshotAt{Number: number, Offset: uint64(size)})
		if err != nil {
			return 0, err
		}
		if len(piece) == 0 {
			return size, nil
		}
		if _, err := w.Write(piece); err != nil {
			return 0, err
		}
		size += int64(len(piece))
		bar.Set(size)
	}
}

// tailSum compares the last 32 bytes of what is written with the SHA-256 of all before.
type tailSum struct {
	sum  hash.Hash
	tail []byte
}

func (t *tailSum) Write(b []byte) (int, error) {
	t.tail = append(t.tail, b...)
	if n := len(t.tail) - sha256.Size; n > 0 {
		t.sum.Write(t.tail[:n])
		t.tail = append(t.tail[:0], t.tail[n:]...)
	}
	return len(b), nil
}

func (t *tailSum) right() bool { return string(t.tail) == string(t.sum.Sum(nil)) }

func (a *app) snapshotRestore(ctx context.Context, file string, replace bool) error {
	dir, err := a.DataDir()
	if err != nil {
		return err
	}
	dir = datadir.HomeOf(dir)
	in, err := os.Open(file)
	if err != nil {
		return sigma.Wrap("sigma.snapshot", file, err)
	}
	defer in.Close()
	if err := datadir.Prepare(dir); err != nil {
		return err
	}
	lock, err := datadir.Lock(ctx, dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	keys, size, err := putSnapshot(ctx, dir, in, replace)
	if err == nil {
		err = becomeFirst(dir)
	}
	if err != nil {
		return err
	}
	return a.say(snapshotJSON{file, keys, size}, "%s, %v: restored at the next start: %s", cli.Count(int(keys), "key"),
		sigma.Bytes(size), datadir.CommandOn("up", dir))
}

// becomeFirst has the machine of DATA, which is to be the only control machine, run what the first
// of a system runs: the stores of objects and databases, too.
func becomeFirst(dir string) error {
	r, err := datadir.ReadRecord(dir)
	if err != nil || r == nil || r.Role != datadir.RoleControl {
		return err
	}
	r.Role = datadir.RoleFounder
	return r.Write(dir)
}

// checkSnapshot has named read to its end the file at path, a copy of the snapshot file.
func checkSnapshot(ctx context.Context, path, file string) (keys uint64, err error) {
	programs, err := cli.FindPrograms()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, programs[datadir.NamedName], "--check", path)
	var said strings.Builder
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err == nil {
		keys, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	}
	if err != nil {
		return 0, &sigma.Error{Op: "sigma.snapshot", Path: file, Kind: sigma.KindInvalid,
			Msg:  cli.OrElse(strings.TrimSpace(said.String()), err.Error()),
			Hint: "make snapshots with: sigma snapshot save FILE"}
	}
	return keys, nil
}

// putSnapshot gives named a copy of the snapshot for its next start. Who named is is known then.
// The copy is what is checked, since others may write to the file itself.
func putSnapshot(ctx context.Context, dir string, in *os.File, replace bool) (keys uint64, size int64, err error) {
	const op = "sigma.snapshot"
	own := filepath.Join(dir, datadir.NamedName)
	if err := os.Mkdir(own, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, 0, datadir.Explain(own, err)
	}
	exists := func(name string) bool {
		_, err := os.Lstat(name)
		return err == nil
	}
	if exists(filepath.Join(own, "system")) {
		return 0, 0, &sigma.Error{Op: op, Path: own, Kind: sigma.KindUnsupported,
			Msg: "the names of this system are in an etcd that you run, into which sigmaOS restores nothing",
			Hint: "restore that etcd's own backup: etcdctl snapshot save, etcdutl snapshot restore; or begin a new " +
				"system with a fresh --data DIR"}
	}
	if exists(filepath.Join(own, "etcd")) && !replace {
		return 0, 0, &sigma.Error{Op: op, Path: own, Kind: sigma.KindExists, Msg: "has names already",
			Hint: "replace them, and keep them aside, with --replace; or choose a fresh --data DIR"}
	}
	name := datadir.RestoreName
	switch {
	case exists(filepath.Join(dir, "machined", "authority")):
	case datadir.IsMember(dir):
		return 0, 0, datadir.Error(dir, sigma.KindUnsupported,
			"is that of a machine that has no authority over others, as control machines have",
			"restore on one of these, or on a fresh --data DIR, which begins a new system with the names")
	default:
		name = datadir.RestoreFreshName
	}
	for _, former := range []string{datadir.RestoreName,
		datadir.RestoreFreshName} { // of a restore before that was not followed by a start
		if err := os.Remove(filepath.Join(own, former)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, 0, datadir.Explain(own, err)
		}
	}
	out, err := hostdir.Create(filepath.Join(own, name), 0o600)
	if err != nil {
		return 0, 0, datadir.Explain(own, err)
	}
	defer out.Drop()
	if size, err = io.Copy(out, in); err == nil {
		err = out.Chmod(0o644) // named's own user reads it; the directory keeps others out
	}
	if err == nil {
		err = out.Sync()
	}
	if err != nil {
		return 0, 0, datadir.Explain(own, err)
	}
	if keys, err = checkSnapshot(ctx, out.Name(), in.Name()); err != nil {
		return 0, 0, err
	}
	if err = out.Commit(); err != nil {
		return 0, 0, datadir.Explain(own, err)
	}
	return keys, size, nil
}
