package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// RecordEtcd is what is remembered of it. The files are read at each up, so that certificates can
// be renewed.
type RecordEtcd struct {
	Members []string `json:"members"` // HOST:PORT
	CA      string   `json:"ca,omitempty"`
	Cert    string   `json:"cert,omitempty"`
	Key     string   `json:"key,omitempty"`
}

// RecordName is the file of DATA in which up and join note what the machine is, for the next up.
const RecordName = "machine"

// Roles of machines, from which follows what they run besides sigmad.
const (
	RoleFounder  = "founder"  // the first of its system; its disk is the store
	RoleControl  = "control"  // it joined, and holds a part of the control plane
	RoleOrdinary = "ordinary" // it joined
)

// Record is what RecordName holds.
type Record struct {
	Machine sigma.MachineID   `json:"machine"`
	Role    string            `json:"role"`
	Address string            `json:"address,omitempty"` // IP:port where others reach it; "" = nobody does
	CPU     sigma.MilliCPU    `json:"cpu,omitempty"`     // 0 = all of the host's
	Memory  sigma.Bytes       `json:"memory,omitempty"`  // 0 = all of the host's
	Labels  map[string]string `json:"labels,omitempty"`
	// where the names are; nil = in named's own etcd, or as it was told when it joined
	Etcd    *RecordEtcd `json:"etcd,omitempty"`
	Encrypt bool        `json:"encrypt,omitempty"` // all that goes to other machines
	Local   bool        `json:"local,omitempty"`   // its network is that of up --machines

	Bescheds int    `json:"bescheds,omitempty"` // that it runs if it is a control machine; 0 = 1
	Uplink   uint64 `json:"uplink,omitempty"`   // bits a second of the network behind its interface; 0 = what that says
	NoUplink bool   `json:"noUplink,omitempty"` // nothing goes first there
}

// ReadRecord gives what the machine of DATA is; nil if that was never noted.
func ReadRecord(dir string) (*Record, error) {
	path := filepath.Join(dir, RecordName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, Explain(path, err)
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil || r.Machine.Check() != nil ||
		!slices.Contains([]string{RoleFounder, RoleControl, RoleOrdinary}, r.Role) {
		return nil, &sigma.Error{Op: "sigma.readRecord", Path: path, Kind: sigma.KindInvalid,
			Msg: "does not say what this machine is", Hint: "restore it from a backup"}
	}
	return &r, nil
}

func (r *Record) Write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return sigma.Wrap("sigma.record", "", err)
	}
	return Write(filepath.Join(dir, RecordName), string(b)+"\n", -1)
}

// IsMember tells whether the machine of DATA has an identity in a system.
func IsMember(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "sigmad", "identity"))
	return err == nil
}

// Arguments are the launcher's.
func (r *Record) Arguments() []string {
	args := []string{"--machine", string(r.Machine)}
	if r.Address != "" {
		args = append(args, "--address", r.Address)
	}
	if r.CPU > 0 {
		args = append(args, "--cpu", fmt.Sprint(uint32(r.CPU)))
	}
	if r.Memory > 0 {
		args = append(args, "--memory", fmt.Sprint(uint64(r.Memory)))
	}
	if r.Encrypt {
		args = append(args, "--encrypt", "yes")
	}
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
		labels = append(labels, name+"="+r.Labels[name])
	}
	if labels != nil {
		args = append(args, "--labels", strings.Join(labels, ","))
	}
	return args
}

// What named calls a snapshot in its data directory that is to replace its store at the next start;
// see named.RestoreName. The fresh one begins another system.
const (
	RestoreName      = "restore"
	RestoreFreshName = "restore.fresh"
	NamedName        = "named"
)
