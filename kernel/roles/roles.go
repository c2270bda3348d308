// Package roles says what a session that was begun with a credential may do with the files of /sys
// (docs/reference/credentials.md). Users: kernel.
package roles

import (
	"context"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
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
func Limit(f sigma.File, name string, role sigma.Role) sigma.File {
	l := &limited{next: f, name: name, role: role}
	l.Handler = l
	return l
}

// limited is a file of /sys as a session with a role has it.
type limited struct {
	sigma.Stub
	next sigma.File
	name string
	role sigma.Role
}

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

// Handle implements sigma.Handler. What is not named here is not to be had of /sys.
func (f *limited) Handle(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	method := Reading
	switch r.Op {
	case sigma.OpClose, sigma.OpIdentify, sigma.OpWalk, sigma.OpStat, sigma.OpReadDir, sigma.OpReadLink, sigma.OpSync,
		sigma.OpSpace:
	case sigma.OpCall: // descriptors are not passed, as for a view
		session.CloseFiles(r.Files)
		r.Files, method = nil, r.Name
		fallthrough
	case sigma.OpOpen, sigma.OpReadAt, sigma.OpGet:
		if r.Flags.Writes() || !Allows(f.role, f.name, method) {
			return a, f.refuse(r.Op.String(), method)
		}
	case sigma.OpRecall, sigma.OpRemembers, sigma.OpStreams:
		return a, nil
	default:
		return a, treeserver.Unsupported(r.Op.String())
	}
	a, err = treeserver.Do(ctx, f.next, r)
	session.CloseFiles(a.Files)
	if a.Files = nil; a.File != nil {
		a.File = Limit(a.File, f.name, f.role)
	}
	return a, err
}
