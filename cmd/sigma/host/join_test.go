package host

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/sigma"
)

func TestHostBears(t *testing.T) {
	for _, c := range []struct {
		cores  int
		memory sigma.Bytes
		want   int
	}{{1, 8 * sigma.GiB, 5}, {2, 24 * sigma.GiB, 8}, {64, 4 * sigma.GiB, 16}, {256, 1 << 40, datadir.MachinesMost},
		{1, sigma.MiB, 1}} {
		if got, why := hostBears(c.cores, c.memory); got != c.want {
			t.Errorf("%d cores, %v: %d (%s), want %d", c.cores, c.memory, got, why, c.want)
		}
	}
}

func TestInstancesOfSeveral(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the network namespaces need root")
	}
	dir := t.TempDir()
	c := &datadir.Cluster{Machines: 5, Control: 3}
	os.WriteFile(filepath.Join(dir, datadir.LockName), nil, 0o600)
	os.MkdirAll(filepath.Dir(datadir.MachineDir(dir, 1)), 0o700)
	os.MkdirAll(datadir.MachineDir(dir, 1), 0o700)
	os.WriteFile(filepath.Join(datadir.MachineDir(dir, 1), datadir.InstanceName), []byte("fffffffe\n"), 0o600)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ms, err := planMembers(ctx, c, dir, upOptions{})
	if err != nil || len(ms) != 5 {
		t.Fatal(ms, err)
	}
	uids := map[int]bool{}
	for i, m := range ms {
		id, err := datadir.Instance(m.dir)
		if err != nil {
			t.Fatal(err)
		}
		uid, err := programUID(id, 0)
		if err != nil || uids[uid] {
			t.Errorf("%s has uid %d, as another; %v", m.name, uid, err)
		}
		uids[uid] = true
		want := map[bool]string{true: datadir.RoleControl, false: datadir.RoleOrdinary}[i < 3]
		if i == 0 {
			want = datadir.RoleFounder
		}
		if m.plan.record.Role != want || m.plan.record.Address != "10.77.0."+strconv.Itoa(i+1)+":7700" {
			t.Errorf("%s is %+v", m.name, m.plan.record)
		}
	}
}
