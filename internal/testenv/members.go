package testenv

import (
	"context"
	"fmt"

	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// machinesFile is the system realm's file that answers for machined.
const machinesFile = "machines"

// Members asks the system, by way of this machine, how its machines stand.
func (m *Machine) Members(ctx context.Context) (map[sigma.MachineID]sigma.MachineInfo, error) {
	c, err := sdk.Connect(ctx, m.Socket(), sigma.SystemRealm)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	f, _, err := c.Root().Walk(ctx, []string{sigma.NameSys, machinesFile})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	caller, ok := f.(sigma.Caller)
	if !ok {
		return nil, fmt.Errorf("/sys/%s cannot be called", machinesFile)
	}
	list, err := machines.NewClient(caller).List(ctx)
	out := map[sigma.MachineID]sigma.MachineInfo{}
	for _, i := range list {
		out[i.ID] = i
	}
	return out, err
}
