// Command sigmad is the sigmaOS kernel of a machine. The launcher starts it; see docs/internals/launcher-protocol.md for what it is born with.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigmaos.dev/binfs"
	"sigmaos.dev/kernel"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
)

// File descriptors that the launcher passes.
const (
	keeperFile = 3
	readyFile  = 4
	firstFile  = 5 // then two for each program: its executable and its data directory
)

// delayFile, which only the provider can make, puts the object store as far away as it says ("200us" each way): for benches and tests.
const delayFile = "/data/store-delay"

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
	weaken := flag.Bool("weaken", false, "let SIGMA_WEAKEN in a descriptor's environment take protections off (tests only)")
	rootless := flag.Uint("rootless", 0, "run by an ordinary user, in a user namespace with so many uids from 1 on (0 = by root)")
	fuse := flag.Int("fuse", 0, "number of the file descriptor of binfs's FUSE device; the next one is the root of its mount (0 = there is none)")
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
	cfg := kernel.Config{Machine: sigma.MachineID(*machine), Keeper: keeper, Data: "/data", Log: log, UIDBase: 0x40000000 + uint32(number%1024)<<20, UIDs: 1 << 20, AllowWeaken: *weaken,
		Ready: func() { say("ready") }}
	if *rootless > 0 {
		cfg.UIDBase, cfg.UIDs, cfg.Rootless = 1, uint32(*rootless), true
	}
	for i, name := range strings.Split(*programs, ",") {
		syscall.CloseOnExec(firstFile + 2*i)
		syscall.CloseOnExec(firstFile + 2*i + 1)
		cfg.Programs = append(cfg.Programs, kernel.Program{Name: name, File: os.NewFile(uintptr(firstFile+2*i), name), Dir: os.NewFile(uintptr(firstFile+2*i+1), name)})
	}
	if text, err := os.ReadFile(delayFile); err == nil {
		if cfg.StoreDelay, err = time.ParseDuration(strings.TrimSpace(string(text))); err != nil {
			say("error: " + delayFile + " has no duration")
			return err
		}
	}
	if *fuse > 0 {
		syscall.CloseOnExec(*fuse)
		syscall.CloseOnExec(*fuse + 1)
		cfg.Mount = &binfs.Mount{Device: os.NewFile(uintptr(*fuse), "fuse"), Root: os.NewFile(uintptr(*fuse+1), "programs")}
	}
	k, err := kernel.New(cfg)
	if err != nil {
		say("error: " + err.Error())
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := k.Run(ctx); err != nil {
		say("error: " + err.Error())
		return err
	}
	return nil
}
