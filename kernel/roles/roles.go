// Package roles says what a session that was begun with a credential may do with the files of /sys
// (docs/reference/credentials.md). Users: kernel.
package roles

import (
	"context"
	"os"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// What a session may do that was begun with a credential (docs/reference/credentials.md). Names and
// files it reaches as its view says, which is of all of the realm, with the rights of the role; of
// /sys what stands here, and nothing else: what is missing is refused. What a method does for who
// may call it is judged where it is done, for procs of the realm as for such sessions: they see
// their own realm and no other.

// Nobody is the role of what no credential allows: the provider's, or a proc's own.
const Nobody = sigma.RoleOwner + 1

// Reading is the row of a file that is read, not called.
const Reading = ""

// Permissions name the least role for each method of each file of /sys. A test compares it with the
// methods there are.
var Permissions = map[string]map[string]sigma.Role{
	sigmap.FileProcs: {
		sigmap.CallListProcs.Name:  sigma.RoleViewer,
		sigmap.CallWaitStart.Name:  sigma.RoleViewer,
		sigmap.CallWaitExit.Name:   sigma.RoleViewer,
		sigmap.CallSpawn.Name:      sigma.RoleDeveloper,
		sigmap.CallEvict.Name:      sigma.RoleDeveloper,
		sigmap.CallKill.Name:       sigma.RoleDeveloper,
		sigmap.CallFreeze.Name:     sigma.RoleDeveloper,
		sigmap.CallThaw.Name:       sigma.RoleDeveloper,
		sigmap.CallProcsUsage.Name: sigma.RoleViewer, // each reads it in /proc too
		// it tells texts of endpoints, with which anybody of the realm could dial
		sigmap.CallCaps.Name: Nobody,
	},
	sigmap.FileSelf: {
		sigmap.CallInfo.Name:      sigma.RoleViewer,
		sigmap.CallStarted.Name:   Nobody,
		sigmap.CallExited.Name:    Nobody,
		sigmap.CallWaitEvict.Name: Nobody,
		sigmap.CallWorked.Name:    Nobody,
	},
	// A connection would be out of sigmad's hands, and outlive the credential.
	sigmap.FileEndpoints: {
		Reading:                    sigma.RoleViewer,
		sigmap.CallListen.Name:     Nobody,
		sigmap.CallAccept.Name:     Nobody,
		sigmap.CallDial.Name:       Nobody,
		sigmap.CallPool.Name:       Nobody,
		sigmap.CallClose.Name:      Nobody,
		sigmap.CallRevoke.Name:     Nobody,
		sigmap.CallLog.Name:        Nobody,
		sigmap.CallRing.Name:       Nobody,
		sigmap.CallEndRing.Name:    Nobody,
		sigmap.CallMeter.Name:      Nobody,
		sigmap.CallDialStream.Name: Nobody,
		sigmap.CallEtcd.Name:       Nobody,
		sigmap.CallDialEtcd.Name:   Nobody,
		sigmap.CallDialServer.Name: Nobody,
	},
	sigmap.FileRealms: {
		Reading:                     sigma.RoleViewer,
		sigmap.CallCreateRealm.Name: Nobody,
		sigmap.CallRemoveRealm.Name: Nobody,
		sigmap.CallListRealms.Name:  Nobody,
		sigmap.CallSetShares.Name:   Nobody,
		sigmap.CallSetLimits.Name:   Nobody,
	},
	sigmap.FileInit: {
		Reading:                     sigma.RoleViewer,
		sigmap.CallInitAdd.Name:     sigma.RoleDeveloper,
		sigmap.CallInitRemove.Name:  sigma.RoleDeveloper,
		sigmap.CallInitRestart.Name: sigma.RoleDeveloper,
		initd.CallLook.Name:         Nobody,
		initd.CallSpawn.Name:        Nobody,
		initd.CallStop.Name:         Nobody,
	},
	sigmap.FileEvents: {
		Reading:                sigma.RoleViewer,
		sigmap.CallEvents.Name: sigma.RoleViewer,
	},
	sigmap.FileDecisions: {
		Reading:                sigma.RoleViewer,
		decision.CallNote.Name: Nobody,
	},
	sigmap.FileCredentials: {
		Reading:                          sigma.RoleOwner,
		sigmap.CallCreateCredential.Name: sigma.RoleOwner,
		sigmap.CallRevokeCredential.Name: sigma.RoleOwner,
	},
	sigmap.FileMachines: {Reading: sigma.RoleViewer},
	Version:             {Reading: sigma.RoleViewer},
	Queues:              {Reading: sigma.RoleViewer},
	Utilisation:         {Reading: sigma.RoleViewer},
	Usage:               {Reading: sigma.RoleViewer},
	UsageProcs:          {Reading: sigma.RoleViewer},
	Limits:              {Reading: sigma.RoleViewer},
	Connections:         {Reading: sigma.RoleViewer},
	Traffic:             {Reading: sigma.RoleViewer},
	Distances:           {Reading: sigma.RoleViewer},
	// The machine's and the system's: no method, no byte.
	sigmap.FileMachine: {},
	sigmap.FileNames:   {},
	Roster:             {},
	Load:               {},
	Metrics:            {},
}

// Allows says whether a role may call a method of a file of /sys, or read it.
func Allows(role sigma.Role, file, method string) bool {
	need, known := Permissions[file][method]
	return known && need != sigma.RoleNone && role >= need
}

// MayUse says whether a role may do anything with a file of /sys.
func MayUse(role sigma.Role, file string) bool {
	for method := range Permissions[file] {
		if Allows(role, file, method) {
			return true
		}
	}
	return false
}

// View is the view of a session with a role.
func View(role sigma.Role) (*view.Table, error) {
	rights := sigma.RightsRead
	if role >= sigma.RoleDeveloper {
		rights = sigma.RightsAll
	}
	return view.Make([]sigma.ViewEntry{{Path: "/", Target: "/", Rights: rights}}, nil)
}

// Limit is a file of /sys, of that name, as a session with a role has it.
func Limit(f sigma.File, name string, role sigma.Role) sigma.File { return &limited{f, name, role} }

// limited is a file of /sys as a session with a role has it.
type limited struct {
	sigma.File
	name string
	role sigma.Role
}

var _ sigma.Caller = (*limited)(nil)

func (f *limited) refuse(op, method string) error {
	what := "reading /sys/" + f.name
	if method != Reading {
		what = method + " of /sys/" + f.name
	}
	hint := "ask an owner of the realm for a credential with another role"
	if need := Permissions[f.name][method]; need == Nobody || need == sigma.RoleNone {
		hint = "this is the provider's, who works as root without a credential"
	}
	return &sigma.Error{Op: "kernel.roles." + op, Kind: sigma.KindPermission,
		Msg: "the credential's role " + f.role.String() + " does not allow " + what, Hint: hint}
}

// Walk clones.
func (f *limited) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	inner, ids, err := f.File.Walk(ctx, names)
	if inner != nil {
		inner = &limited{inner, f.name, f.role}
	}
	return inner, ids, err
}

// Open implements sigma.File.
func (f *limited) Open(ctx context.Context, flags sigma.OpenFlags) error {
	if flags.Writes() || !Allows(f.role, f.name, Reading) {
		return f.refuse("Open", Reading)
	}
	return f.File.Open(ctx, flags)
}

// ReadAt implements sigma.File.
func (f *limited) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	if !Allows(f.role, f.name, Reading) {
		return 0, f.refuse("ReadAt", Reading)
	}
	return f.File.ReadAt(ctx, p, offset)
}

// Call implements sigma.Caller.
func (f *limited) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	for _, file := range files {
		file.Close()
	}
	if !Allows(f.role, f.name, method) {
		return nil, nil, f.refuse("Call", method)
	}
	c, ok := f.File.(sigma.Caller)
	if !ok {
		return nil, nil, f.refuse("Call", method)
	}
	reply, back, err := c.Call(ctx, method, payload, nil)
	session.CloseFiles(back) // as for viewFile.Call
	return reply, nil, err
}
