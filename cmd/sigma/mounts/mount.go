// Package mounts shows the realm to programs of this host: as a directory, by FUSE, and to clients
// of 9P2000.L.
package mounts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/apps/mount"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newMountCommand(a),
		newUnmountCommand(a),
		newServeCommand(a),
	}
}

// A mount is served by one process and unmounted by another, its keeper, when that one ends,
// however it does. A mount whose server is dead answers every program that comes near it with
// ENOTCONN until somebody unmounts it. The keeper of a mount in the background is what the command
// leaves running; --foreground makes the command be it. Of a mount that root makes the server has
// no rights: the keeper does what needs them (mounthost.go). When the keeper is killed nobody would
// unmount, so a third process, the spare, waits for that (mountspare.go).

// mountReadyMax is how long the server may take until the kernel serves the mount: it connects, and
// asks once.
const mountReadyMax = 30 * time.Second

// mountReadyFD is where server and keeper tell who started them that they are ready, or why not, in
// one line.
const mountReadyFD = 3

type mountOptions struct {
	allowOther, readOnly, trustLinks bool
	foreground, serve, spare         bool
	uid                              int    // of the server; 0 = it stays the user that it is
	device, cgroup                   string // of the mount that a spare is for, and of its server
}

func newMountCommand(a *app) *cobra.Command {
	var o mountOptions
	cmd := &cobra.Command{
		Use:   "mount [--allow-other] [--read-only] [--trust-links] [-f] DIR [PATH]",
		Short: "Mount the realm's tree as a directory of this host",
		Long: `Mount PATH of the realm (default /) on DIR, an empty directory of this host, so that any
program can use its files. It runs in the background until "sigma unmount DIR".

Files belong to who mounts, and only that user may use them unless --allow-other is
given. Links lead to places below DIR, or nowhere, whoever made them; with --trust-links
they lead where they say on this host. Changes made elsewhere are seen within a second. Set-user-ID bits and devices do
not count. It goes on when the system is restarted, and ends when that is away for a
minute.`,
		Example: `  sudo sigma mount /mnt/sigma
  sudo cp -a project /mnt/sigma/ux/~local/
  sudo sigma mount -r alice --read-only /mnt/alice /s3
  sudo sigma unmount /mnt/sigma`,
		Args:        cli.Between(1, 2),
		Annotations: map[string]string{cli.OwnSignals: ""},
		RunE: func(cmd *cobra.Command, args []string) error {
			at := "/"
			if len(args) == 2 {
				var err error
				if at, err = cli.PlainPath(args[1]); err != nil {
					return err
				}
			}
			if o.spare {
				return spareMount(args[0], o)
			}
			if o.serve {
				return a.serveMount(args[0], at, o)
			}
			dir, err := mountPoint(args[0])
			if err != nil {
				return err
			}
			c, err := a.Connect(cmd.Context()) // what is wrong with that is told here, with its exit code
			if err != nil {
				return err
			}
			c.Close()
			if o.foreground {
				return a.keepMount(dir, at, o)
			}
			return a.mountInBackground(dir, at, o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.allowOther, "allow-other", false, "let other users of this host use it too, as the modes allow")
	f.BoolVar(&o.readOnly, "read-only", false, "let nobody change anything through it")
	f.BoolVar(&o.trustLinks, "trust-links", false,
		"show links as they were written, also where they lead to files of this host")
	f.BoolVarP(&o.foreground, "foreground", "f", false, "do not go to the background; ^C unmounts")
	f.BoolVar(&o.serve, "serve", false, "serve the kernel")
	f.BoolVar(&o.spare, "spare", false, "unmount when the keeper is gone")
	f.IntVar(&o.uid, "uid", 0, "of the server")
	f.StringVar(&o.device, "device", "", "of the mount")
	f.StringVar(&o.cgroup, "cgroup", "", "of the server")
	for _, hidden := range []string{"serve", "spare", "uid", "device", "cgroup"} {
		f.MarkHidden(hidden)
	}
	return cmd
}

func mountFault(dir string, kind sigma.Kind, msg, hint string) error {
	return &sigma.Error{Op: "sigma.mount", Path: dir, Kind: kind, Msg: msg, Hint: hint}
}

// mountPoint checks a directory to mount on and gives its real path. A mount of ours that was left
// dead there is taken away.
func mountPoint(dir string) (string, error) {
	if abs, err := filepath.Abs(dir); err == nil {
		if err := unmountDead(abs); err != nil {
			return "", err
		}
	}
	real, err := filepath.EvalSymlinks(dir)
	if os.IsNotExist(err) {
		return "", mountFault(dir, sigma.KindNotFound, "there is no such directory", "make it with: mkdir -p "+dir)
	}
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return "", files.HostError(err)
	}
	if isMounted(real) {
		return "", mountFault(dir, sigma.KindExists, "a realm is mounted there already",
			"unmount it with: sigma unmount "+dir)
	}
	entries, err := os.ReadDir(real)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return "", mountFault(dir, sigma.KindNotDir, "is not a directory",
			"a mount needs an empty directory: mkdir -p /mnt/sigma")
	case err != nil:
		return "", files.HostError(err)
	case len(entries) > 0:
		return "", mountFault(dir, sigma.KindNotEmpty, "is not empty, and its files would be hidden",
			"mount on an empty directory, for example: mkdir "+filepath.Join(dir, "sigma"))
	}
	return real, nil
}

// again is the command line of this program as keeper or server.
func (a *app) again(dir, at string, o mountOptions, flag string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, sigma.Wrap("sigma.mount", "", err)
	}
	args := []string{"mount", flag, "--realm", a.Realm, "--addr", a.Socket()}
	if a.Credential != "" {
		credential := a.Credential
		if abs, err := filepath.Abs(credential); err == nil && credential[0] != '@' {
			credential = abs
		}
		args = append(args, "--credential", credential)
	}
	for flag, is := range map[string]bool{"--allow-other": o.allowOther, "--read-only": o.readOnly,
		"--trust-links": o.trustLinks} {
		if is {
			args = append(args, flag)
		}
	}
	return exec.Command(self, append(args, "--", dir, at)...), nil
}

// startMount starts keeper or server, calls started, and waits until it is ready, or says why not.
func startMount(cmd *exec.Cmd, started func()) (err error) {
	ready, w, err := os.Pipe()
	if err != nil {
		return sigma.Wrap("sigma.mount", "", err)
	}
	defer ready.Close()
	cmd.ExtraFiles = append([]*os.File{w}, cmd.ExtraFiles...)
	cmd.Dir = "/" // so that it keeps no file system busy
	err = cmd.Start()
	w.Close()
	if err != nil {
		return sigma.Wrap("sigma.mount", cmd.Path, err)
	}
	started()
	ready.SetReadDeadline(time.Now().Add(mountReadyMax))
	text, err := bufio.NewReader(io.LimitReader(ready, 4096)).ReadString('\n')
	if err == nil && text == "ready\n" {
		return nil
	}
	cmd.Process.Kill()
	cmd.Wait()
	msg, hint, _ := strings.Cut(strings.TrimSuffix(text, "\n"), "\x00")
	return &sigma.Error{Op: "sigma.mount", Kind: sigma.KindUnavailable,
		Msg: cli.OrElse(msg, "the mount did not become ready"), Hint: hint}
}

// tellStarter tells who started this process that it is ready, or why not.
func tellStarter(err error) {
	f := os.NewFile(mountReadyFD, "ready")
	if f == nil {
		return
	}
	defer f.Close()
	if err == nil {
		io.WriteString(f, "ready\n")
		return
	}
	fmt.Fprintf(f, "%s\x00%s\n", strings.ReplaceAll(err.Error(), "\n", " "), strings.ReplaceAll(sigma.HintOf(err), "\n",
		" "))
}

// mountInBackground starts a keeper that lives on.
func (a *app) mountInBackground(dir, at string, o mountOptions) error {
	cmd, err := a.again(dir, at, o, "--foreground")
	if err != nil {
		return err
	}
	cmd.Env = append(os.Environ(), mountStarted+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := startMount(cmd, func() {}); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// mountStarted is set of a keeper that somebody waits for.
const mountStarted = "SIGMA_MOUNT_STARTED"

// keepMount runs the server, and unmounts what it may leave.
func (a *app) keepMount(dir, at string, o mountOptions) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	cmd, err := a.again(dir, at, o, "--serve")
	if err != nil {
		return err
	}
	started := a.Getenv(mountStarted) != ""
	if !started {
		cmd.Stderr = term.Raw(a.Err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	var host *mountHost
	if mayMount() {
		if host, err = a.newMountHost(a.mountConfig(dir, at, o), cmd); err != nil {
			return err
		}
		defer host.close()
	}
	err = startMount(cmd, func() { host.run(cmd.Process.Pid) })
	if err == nil {
		err = host.startSpare()
	}
	if started {
		tellStarter(err)
	}
	if err != nil {
		host.detach()
		return errors.Join(err, unmountDead(dir))
	}
	if !started {
		a.Remark("%s of realm %s is mounted on %s; ^C unmounts it", at, a.Realm, dir)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err = <-ended:
			host.detach()
			if err = errors.Join(err, unmountDead(dir)); err != nil {
				return &sigma.Error{Op: "sigma.mount", Path: dir, Kind: sigma.KindLost,
					Msg: "the server of the mount ended, and it was unmounted", Err: err,
					Hint: "mount it again with: sigma mount " + dir}
			}
			return nil
		case <-signals:
			if err := unmount(dir, false); err != nil {
				a.PrintError(err)
			}
		}
	}
}

// objects are the names at a realm's root behind which files are objects.
func objects() []string { return []string{sigma.NameS3} }

func (a *app) mountConfig(dir, at string, o mountOptions) mount.Config {
	return mount.Config{Dir: dir, Path: at, Source: "sigma:" + a.Realm + ":" + at, AllowOther: o.allowOther,
		ReadOnly: o.readOnly, TrustLinks: o.trustLinks, Objects: objects(),
		UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Connect: a.Connect}
}

// serveMount mounts and serves until somebody unmounts.
func (a *app) serveMount(dir, at string, o mountOptions) error {
	signals, lost := make(chan os.Signal, 4), make(chan struct{})
	signal.Notify(signals, syscall.SIGTERM)
	cfg := a.mountConfig(dir, at, o)
	cfg.Lost = func() { close(lost) }
	err := limitMemory()
	if o.uid != 0 && err == nil {
		host := a.hostOfMount()
		cfg.Host, cfg.Connect = host, host.connect
		err = dropRights(o.uid)
	}
	var m *mount.Mount
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), mountReadyMax)
		defer cancel()
		m, err = mount.New(ctx, cfg)
	}
	tellStarter(err)
	if err != nil {
		return err
	}
	unmounted, ends := make(chan struct{}), false
	go func() { m.Wait(); close(unmounted) }()
	for !ends {
		select {
		case <-unmounted:
			return nil
		case <-signals: // the keeper of an ordinary user's mount is gone
		case <-lost:
		}
		ends = cfg.Host != nil // and keeper or spare unmounts
		if !ends && m.Unmount() != nil {
			unmount(dir, true)
		}
	}
	return nil
}

func newUnmountCommand(a *app) *cobra.Command {
	lazy := false
	cmd := &cobra.Command{
		Use:     "unmount [-l] DIR...",
		Aliases: []string{"umount"},
		Short:   "Unmount what sigma mount mounted",
		Long: `Unmount what "sigma mount" mounted on DIR. While a program uses files there it is busy;
with --lazy it goes from DIR at once, and altogether when the last program has closed
its files.`,
		Example: `  sudo sigma unmount /mnt/sigma`,
		Args:    cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return files.Each(cmd.Context(), len(args), func(_ context.Context, i int) error {
				return unmountDir(args[i], lazy)
			})
		},
	}
	cmd.Flags().BoolVarP(&lazy, "lazy", "l", false, "also while it is in use")
	return cmd
}

// unmountDir unmounts what a person named.
func unmountDir(dir string, lazy bool) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return files.HostError(err)
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil && !isMounted(abs) {
		abs = filepath.Join(parent, filepath.Base(abs)) // of a dead mount only what is above can be resolved
	}
	if !isMounted(abs) {
		return mountFault(dir, sigma.KindNotFound, "no realm is mounted there",
			"mounts are shown by: findmnt -t "+mount.Type)
	}
	return unmount(abs, lazy)
}

// mounted is a directory on which a realm is mounted.
type mounted struct{ Dir, device string }

// Mounts are those of all users.
func Mounts() (all []mounted) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		left, right, _ := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) > 4 && len(r) > 0 && r[0] == mount.Type {
			all = append(all, mounted{Dir: unescapeMount(l[4]), device: l[2]})
		}
	}
	return all
}

// unescapeMount undoes what the kernel does to spaces and the like in mountinfo.
func unescapeMount(s string) string {
	for _, c := range []string{" ", "\t", "\n", `\`} {
		s = strings.ReplaceAll(s, fmt.Sprintf(`\%03o`, c[0]), c)
	}
	return s
}

func isMounted(dir string) bool {
	return deviceOf(dir) != ""
}

// DeadMount says whether a realm is mounted on dir whose server is gone. The kernel answers by
// itself then.
func DeadMount(dir string) bool {
	var st unix.Statfs_t
	return isMounted(dir) && errors.Is(unix.Statfs(dir, &st), unix.ENOTCONN)
}

// unmountDead unmounts what has no server any more.
func unmountDead(dir string) error {
	if DeadMount(dir) {
		return unmount(dir, true)
	}
	return nil
}

// unmount unmounts dir, by fusermount3 where this is not root.
func unmount(dir string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(dir, flags)
	if errors.Is(err, unix.EPERM) {
		args := []string{"-u"}
		if lazy {
			args = append(args, "-z")
		}
		out, ferr := exec.Command("fusermount3", append(args, "--", dir)...).CombinedOutput()
		if err = ferr; strings.Contains(string(out), "busy") {
			err = unix.EBUSY
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return mountFault(dir, sigma.KindBusy, "programs use files there",
			"find them with: fuser -vm "+dir+"; or: sigma unmount --lazy "+dir)
	}
	return sigma.Wrap("sigma.unmount", dir, err)
}
