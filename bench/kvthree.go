package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/apps/kv/layout"
)

// memoryDir is a tmpfs that every Linux has: what is synced there is synced at once.
const memoryDir = "/dev/shm"

// three is the part of groups of three members.
func (k *kvStores) three(ctx context.Context) error {
	dir, err := os.MkdirTemp(memoryDir, "sigma-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return k.besideEtcd(ctx, kvThreePrefix, k.layout("three", 1, 3, kvMemory, 300), "etcd_memory", dir)
}

// besideEtcd measures a store of one group of three beside an etcd that has its log in dir.
func (k *kvStores) besideEtcd(ctx context.Context, prefix string, cfg *layout.Config, peer, dir string) error {
	if err := k.create(ctx, cfg); err != nil {
		return err
	}
	defer k.drop(ctx, cfg.Name)
	ours := k.arm("sigma_"+cfg.Name, "shared", cfg.Name)
	arms := []*kvArm{ours}
	etcd, end, err := k.etcd(ctx, peer, dir)
	if err != nil {
		k.note("etcd is skipped: %v", err)
	} else {
		defer end()
		arms = append(arms, etcd)
	}
	if err := k.measureAll(ctx, arms, kvThreeClients); err != nil {
		return err
	}
	return k.printKV(prefix, kvThreeClients, ours, arms[1:])
}

// etcd starts an etcd of three members, each a process that keeps its log in a directory of dir.
func (k *kvStores) etcd(ctx context.Context, name, dir string) (a *kvArm, end func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	const members = 3
	var peers, clients []string
	for range members {
		for _, list := range []*[]string{&peers, &clients} {
			port, err := freePort()
			if err != nil {
				return nil, nil, err
			}
			*list = append(*list, fmt.Sprint("127.0.0.1:", port))
		}
	}
	var running []*exec.Cmd
	end = func() {
		for _, cmd := range running {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	for i := range members {
		cmd := exec.CommandContext(ctx, self, "serve-etcd", filepath.Join(dir, strconv.Itoa(i)), "--member",
			strconv.Itoa(i), "--peers", strings.Join(peers, ","), "--clients", strings.Join(clients, ","))
		cmd.Stderr = k.Notes
		if err := cmd.Start(); err != nil {
			end()
			return nil, nil, err
		}
		running = append(running, cmd)
	}
	for _, address := range clients {
		if err := awaitPort(ctx, address); err != nil {
			end()
			return nil, nil, err
		}
	}
	cpu := func() (sum time.Duration) {
		for _, cmd := range running {
			sum += ownTime(cmd.Process.Pid)
		}
		return sum
	}
	return &kvArm{queueArm{name: name, kind: "etcd", address: strings.Join(clients, ","), cpu: cpu,
		client: k.outside, figures: map[string][]float64{}}}, end, nil
}

// outside runs the client as an ordinary process.
func (k *kvStores) outside(ctx context.Context, args ...string) ([]byte, time.Duration, error) {
	cmd := exec.CommandContext(ctx, k.local, args...)
	cmd.Stderr = k.Notes
	out, err := cmd.Output()
	if err != nil {
		return nil, 0, err
	}
	return out, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
