package sigmap

import "sigmaos.dev/sigma"

// CapsMost bounds each list of endpoints and leases in Caps.
const CapsMost = 128

// Caps is what a proc may reach.
type Caps struct {
	ID      sigma.ProcID
	Realm   sigma.RealmID
	Machine sigma.MachineID // where it runs; "" before it was placed
	Profile sigma.Profile
	All     bool              // it sees all of its realm
	View    []sigma.ViewEntry // if not: what it sees; targets are paths of the realm
	Kin     []sigma.ProcID    // ancestors with views: they may see it and act on it

	Listens []sigma.Endpoint // its own, CapsMost at most
	Read    []sigma.Endpoint // those that it has read in its view and may dial, CapsMost at most
	Entered uint32           // trees behind endpoints that sigmad walks for it
	Leases  []sigma.LeaseID  // CapsMost at most

	Memory sigma.Bytes // limits
	Tasks  uint32
	Files  uint32 // open file descriptors
}

// Caps is what a proc may reach.
func (c *Coder) Caps(p *Caps) {
	c.ProcID(&p.ID)
	c.RealmID(&p.Realm)
	c.MachineID(&p.Machine)
	c.Str((*string)(&p.Profile))
	c.Bool(&p.All)
	c.View(&p.View)
	c.ProcIDs(&p.Kin)
	List(c, &p.Listens, 2, c.Endpoint)
	List(c, &p.Read, 2, c.Endpoint)
	c.U32(&p.Entered)
	List(c, &p.Leases, 8, func(id *sigma.LeaseID) { c.U64((*uint64)(id)) })
	c.U64((*uint64)(&p.Memory))
	c.U32(&p.Tasks)
	c.U32(&p.Files)
}
