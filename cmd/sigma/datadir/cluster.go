package datadir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"sigmaos.dev/sigma"
)

// Several machines on one host: DATA holds clusterName and, below MachinesName, a complete DATA of
// each.
const (
	clusterName  = "cluster"
	MachinesName = "machines"
)

// How many machines a host can bear.
const (
	MachinesPerCore   = 4
	MachinesOnOneCore = 5 // so that any host can show the loss of two control machines
	MachineMemory     = 256 << 20
	MachinesMost      = 250 // addresses
)

// Cluster is what clusterName holds.
type Cluster struct {
	Machines int `json:"machines"`
	Control  int `json:"control"`
}

// ReadCluster tells how many machines dir is of; nil if it is the DATA of one.
func ReadCluster(dir string) (*Cluster, error) {
	path := filepath.Join(dir, clusterName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, Explain(path, err)
	}
	var c Cluster
	if err := json.Unmarshal(b, &c); err != nil || c.Machines < 1 || c.Machines > MachinesMost || c.Control < 1 ||
		c.Control > c.Machines {
		return nil, &sigma.Error{Op: "sigma.readCluster", Path: path, Kind: sigma.KindInvalid,
			Msg: "does not say how many machines there are", Hint: "restore it from a backup"}
	}
	return &c, nil
}

// IsCluster says whether dir is of several machines.
func IsCluster(dir string) bool {
	c, err := ReadCluster(dir)
	return c != nil || err != nil
}

// MachineDir is the DATA of the i-th machine, from 1.
func MachineDir(dir string, i int) string {
	return filepath.Join(dir, MachinesName, fmt.Sprint("m", i))
}

// Dirs are the DATAs of all machines.
func (c *Cluster) Dirs(dir string) (all []string) {
	for i := range c.Machines {
		all = append(all, MachineDir(dir, i+1))
	}
	return all
}

// HomeOf is where commands find the machine they talk to: of several the first that runs, and dir
// itself otherwise.
func HomeOf(dir string) string {
	c, err := ReadCluster(dir)
	if c == nil || err != nil {
		return dir
	}
	for _, m := range c.Dirs(dir) {
		if _, held, err := Running(m); held && err == nil {
			return m
		}
	}
	return MachineDir(dir, 1)
}

// Claim makes DATA that of several machines, and keeps other ups away.
func (c *Cluster) Claim(ctx context.Context, dir string) (*os.File, error) {
	if err := Prepare(dir); err != nil {
		return nil, err
	}
	lock, err := Lock(ctx, dir)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(c)
	if err == nil {
		err = WriteHolder(lock, os.Getpid())
	}
	if err == nil {
		err = Write(filepath.Join(dir, clusterName), string(text)+"\n", -1)
	}
	if merr := os.Mkdir(filepath.Join(dir, MachinesName), 0o711); err == nil && !errors.Is(merr, fs.ErrExist) {
		err = merr
	}
	if err != nil {
		lock.Close()
		return nil, Explain(dir, err)
	}
	return lock, nil
}

// FirstInstance is the number of m1's instance, from which the others count.
func (c *Cluster) FirstInstance(dir string) (uint32, error) {
	m1 := MachineDir(dir, 1)
	if err := Prepare(m1); err != nil {
		return 0, err
	}
	id, err := Instance(m1)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(id, 16, 32)
	return uint32(n), err
}
