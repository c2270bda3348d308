// Command sigmad is the sigmaOS kernel of a machine. The launcher starts it; see
// docs/internals/launcher-protocol.md for what it is born with.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigmaos.dev/kernel"
	"sigmaos.dev/kernel/binfs"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// File descriptors that the launcher passes.
const (
	keeperFile = 3
	readyFile  = 4
	firstFile  = 5 // then two for each program: its executable and its data directory
)

// What lies in the data directory, which only the provider can write.
const (
	data     = "/data"
	joinFile = data + "/join" // how this machine becomes a member; sigma join writes it, the kernel removes it
	joinMax  = 64 << 10
	etcdFile = data + "/etcd" // where the names are kept, if not in named's own etcd; sigma up writes it
)

// delayFile, which only the provider can make, puts the object store as far away as it says
// ("200us" each way): for benches and tests.
const delayFile = data + "/store-delay"

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("daemon", "sigmad")
	if err := run(log); err != nil {
		log.Error("sigmad ends", "err", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger) error {
	machine := flag.String("machine", "", "name of this machine")
	instance := flag.String("instance", "", "eight hexadecimal digits that tell this sigmaOS from others on the host")
	programs := flag.String("programs", "", "the boot set, comma separated, in the order of its file descriptors")
	weaken := flag.Bool("weaken", false,
		"let SIGMA_WEAKEN in a descriptor's environment take protections off (tests only)")
	rootless := flag.Uint("rootless", 0,
		"run by an ordinary user, in a user namespace with so many uids from 1 on (0 = by root)")
	fuse := flag.Int("fuse", 0,
		"number of the file descriptor of binfs's FUSE device; the next one is the root of its mount (0 = there is "+
			"none)")
	listen := flag.Int("listen", 0,
		"number of the file descriptor of a TCP socket that listens for other machines (0 = there is none)")
	realmSocket := flag.Int("realm-socket", 0,
		"number of the file descriptor of a Unix socket that listens for programs with a credential of a realm (0 = "+
			"there is none)")
	address := flag.String("address", "", "IP address and port that other machines are told of it")
	cpu := flag.Uint("cpu", 0, "thousandths of a core that this machine offers (0 = the host's)")
	memory := flag.Uint64("memory", 0, "bytes of memory that this machine offers (0 = the host's)")
	labels := flag.String("labels", "", "labels of this machine, name=value, comma separated")
	deaths := flag.Int("deaths", 0, "how often sigmad or the launcher has died of late")
	encrypt := flag.String("encrypt", "no",
		"yes: all that goes to other machines is encrypted, and passes through sigmad")
	flag.Parse()

	ready := os.NewFile(readyFile, "ready")
	say := func(line string) {
		fmt.Fprintln(ready, line)
		ready.Close()
	}
	number, err := strconv.ParseUint(*instance, 16, 32)
	if err != nil {
		say("error: bad instance")
		return fmt.Errorf("instance %q: %w", *instance, err)
	}
	keeper, err := session.UnixConn(os.NewFile(keeperFile, "keeper"))
	if err != nil {
		say("error: not started by the launcher")
		return err
	}
	toKeeper := launch.NewKeeper(keeper)
	cfg := kernel.Config{Machine: sigma.MachineID(*machine), Keeper: toKeeper, Connects: true,
		Address: *address, CPU: sigma.MilliCPU(*cpu),
		Memory: sigma.Bytes(*memory / 4 * 3), Data: data, Log: log, UIDBase: 0x40000000 + uint32(number%1024)<<20,
		UIDs: 1 << 20, AllowWeaken: *weaken, Encrypt: *encrypt == "yes", Deaths: *deaths,
		Ready: func() { say("ready") },
		Waits: func(what string, missing bool) { fmt.Fprintln(ready, waitsLine(what, missing)) }}
	if *rootless > 0 {
		cfg.UIDBase, cfg.UIDs, cfg.Rootless = 1, uint32(*rootless), true
	}
	if cfg.Labels, err = parseLabels(*labels); err == nil {
		cfg.Join, err = readJoin(joinFile)
	}
	if err == nil {
		cfg.Etcd, err = readEtcd(etcdFile)
	}
	if err == nil && *listen > 0 {
		cfg.Listener, err = listener(*listen)
	}
	if err == nil && *realmSocket > 0 {
		var l net.Listener
		if l, err = listener(*realmSocket); err == nil {
			cfg.RealmSocket = l.(*net.UnixListener)
			cfg.RealmSocket.SetUnlinkOnClose(false) // the next sigmad has it too
		}
	}
	if err != nil {
		say("error: " + err.Error())
		return err
	}
	cfg.Programs = bootSet(*programs)
	if text, err := os.ReadFile(delayFile); err == nil {
		if cfg.StoreDelay, err = time.ParseDuration(strings.TrimSpace(string(text))); err != nil {
			say("error: " + delayFile + " has no duration")
			return err
		}
	}
	if *fuse > 0 {
		syscall.CloseOnExec(*fuse)
		syscall.CloseOnExec(*fuse + 1)
		cfg.Mount = &binfs.Mount{Device: os.NewFile(uintptr(*fuse), "fuse"), Root: os.NewFile(uintptr(*fuse+1),
			"programs")}
	}
	k, err := kernel.New(cfg)
	if err != nil {
		say("error: " + err.Error())
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := k.Run(ctx); err != nil {
		text := "error: " + err.Error()
		if hint := sigma.HintOf(err); hint != "" { // of the system that this machine would join, for one
			text += "\t" + hint
		}
		say(text)
		return err
	}
	return nil
}

// bootSet takes the files of the programs, two for each name of the list.
func bootSet(list string) (all []kernel.Program) {
	for i, name := range strings.FieldsFunc(list, func(c rune) bool { return c == ',' }) {
		fd := firstFile + 2*i
		syscall.CloseOnExec(fd)
		syscall.CloseOnExec(fd + 1)
		all = append(all, kernel.Program{Name: name, File: os.NewFile(uintptr(fd), name),
			Dir: os.NewFile(uintptr(fd+1), name)})
	}
	return all
}

// listener takes the socket that the keeper made.
func listener(fd int) (net.Listener, error) {
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "listen")
	defer f.Close() // FileListener takes a copy
	return net.FileListener(f)
}

// readJoin reads how this machine becomes a member; nil if nothing says so.
func readJoin(path string) (*kernel.Join, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, joinMax))
	if err != nil {
		return nil, err
	}
	var j kernel.Join
	if err := json.Unmarshal(text, &j); err != nil {
		return nil, fmt.Errorf("%s does not say how to join: %w", path, err)
	}
	return &j, nil
}

// readEtcd reads where the names are kept; nil if nothing says so.
func readEtcd(path string) (*sigmap.Etcd, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e := &sigmap.Etcd{}
	if err := json.Unmarshal(text, e); err != nil {
		return nil, fmt.Errorf("%s does not say where the names are: %w", path, err)
	}
	return e, e.Check()
}

// parseLabels reads name=value,name=value. What a label may be is checked by who registers the
// machine.
func parseLabels(text string) (map[string]string, error) {
	labels := map[string]string{}
	for _, one := range strings.FieldsFunc(text, func(c rune) bool { return c == ',' }) {
		name, value, ok := strings.Cut(one, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("label %.80q is not name=value", one)
		}
		labels[name] = value
	}
	return labels, nil
}

// waitsLine is what who boots is told on the pipe: "missing: WHAT" while control machines do not
// answer, else "waits: WHAT", of which no WHAT takes back what was said.
func waitsLine(what string, missing bool) string {
	if missing {
		return "missing: " + what
	}
	return "waits: " + what
}
