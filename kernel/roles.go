package kernel

import (
	"context"
	"os"

	"sigmaos.dev/initd"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/view"
)

// What a session may do that was begun with a credential (docs/reference/credentials.md). Names and
// files it reaches as its view says, which is of all of the realm, with the rights of the role; of
// /sys what stands here, and nothing else: what is missing is refused. What a method does for who
// may call it is judged where it is done, for procs of the realm as for such sessions: they see
// their own realm and no other.

// nobody is the role of what no credential allows: the provider's, or a proc's own.
const nobody = sigma.RoleOwner + 1

// reading is the row of a file that is read, not called.
const reading = ""

// permissions name the least role for each method of each file of /sys. A test compares it with the
// methods there are.
var permissions = map[string]map[string]sigma.Role{
	sigmap.FileProcs: {
		sigmap.CallList:      sigma.RoleViewer,
		sigmap.CallWaitStart: sigma.RoleViewer,
		sigmap.CallWaitExit:  sigma.RoleViewer,
		sigmap.CallSpawn:     sigma.RoleDeveloper,
		sigmap.CallEvict:     sigma.RoleDeveloper,
		sigmap.CallKill:      sigma.RoleDeveloper,
		sigmap.CallFreeze:    sigma.RoleDeveloper,
		sigmap.CallThaw:      sigma.RoleDeveloper,
		sigmap.CallUsage:     sigma.RoleViewer, // each reads it in /proc too
		sigmap.CallCaps:      nobody,           // tells texts of endpoints, with which anybody of the realm could dial
	},
	sigmap.FileSelf: {
		sigmap.CallInfo:      sigma.RoleViewer,
		sigmap.CallStarted:   nobody,
		sigmap.CallExited:    nobody,
		sigmap.CallWaitEvict: nobody,
		sigmap.CallWorked:    nobody,
	},
	// A connection would be out of sigmad's hands, and outlive the credential.
	sigmap.FileEndpoints: {
		reading:               sigma.RoleViewer,
		sigmap.CallListen:     nobody,
		sigmap.CallAccept:     nobody,
		sigmap.CallDial:       nobody,
		sigmap.CallPool:       nobody,
		sigmap.CallClose:      nobody,
		sigmap.CallRevoke:     nobody,
		sigmap.CallLog:        nobody,
		sigmap.CallRing:       nobody,
		sigmap.CallEndRing:    nobody,
		sigmap.CallMeter:      nobody,
		sigmap.CallDialStream: nobody,
		sigmap.CallEtcd:       nobody,
		sigmap.CallDialEtcd:   nobody,
		sigmap.CallDialServer: nobody,
	},
	sigmap.FileRealms: {
		reading:              sigma.RoleViewer,
		sigmap.CallCreate:    nobody,
		sigmap.CallRemove:    nobody,
		sigmap.CallList:      nobody,
		sigmap.CallSetShares: nobody,
		sigmap.CallSetLimits: nobody,
	},
	sigmap.FileInit: {
		reading:                sigma.RoleViewer,
		sigmap.CallInitAdd:     sigma.RoleDeveloper,
		sigmap.CallInitRemove:  sigma.RoleDeveloper,
		sigmap.CallInitRestart: sigma.RoleDeveloper,
		initd.CallLook:         nobody,
		initd.CallSpawn:        nobody,
		initd.CallStop:         nobody,
	},
	sigmap.FileEvents: {
		reading:           sigma.RoleViewer,
		sigmap.CallEvents: sigma.RoleViewer,
	},
	sigmap.FileDecisions: {
		reading:         sigma.RoleViewer,
		sigmap.CallNote: nobody,
	},
	sigmap.FileCredentials: {
		reading:                     sigma.RoleOwner,
		sigmap.CallCreate:           sigma.RoleOwner,
		sigmap.CallCredentialRevoke: sigma.RoleOwner,
	},
	sigmap.FileMachines: {reading: sigma.RoleViewer},
	nameVersion:         {reading: sigma.RoleViewer},
	nameQueues:          {reading: sigma.RoleViewer},
	nameUtilisation:     {reading: sigma.RoleViewer},
	nameUsage:           {reading: sigma.RoleViewer},
	nameUsageProcs:      {reading: sigma.RoleViewer},
	nameLimits:          {reading: sigma.RoleViewer},
	nameConnections:     {reading: sigma.RoleViewer},
	// The machine's and the system's: no method, no byte.
	sigmap.FileMachine: {},
	sigmap.FileNames:   {},
	nameRoster:         {},
	nameLoad:           {},
	nameMetrics:        {},
}

// allows says whether a role may call a method of a file of /sys, or read it.
func allows(role sigma.Role, file, method string) bool {
	need, known := permissions[file][method]
	return known && need != sigma.RoleNone && role >= need
}

// mayUse says whether a role may do anything with a file of /sys.
func mayUse(role sigma.Role, file string) bool {
	for method := range permissions[file] {
		if allows(role, file, method) {
			return true
		}
	}
	return false
}

// roleView is the view of a session with a role.
func roleView(role sigma.Role) (*view.Table, error) {
	rights := sigma.RightsRead
	if role >= sigma.RoleDeveloper {
		rights = sigma.RightsAll
	}
	return view.Make([]sigma.ViewEntry{{Path: "/", Target: "/", Rights: rights}}, nil)
}

// roleFile is a file of /sys as a session with a role has it.
type roleFile struct {
	sigma.File
	name string
	role sigma.Role
}

var _ sigma.Caller = (*roleFile)(nil)

func (f *roleFile) refuse(op, method string) error {
	what := "reading /sys/" + f.name
	if method != reading {
		what = method + " of /sys/" + f.name
	}
	hint := "ask an owner of the realm for a credential with another role"
	if need := permissions[f.name][method]; need == nobody || need == sigma.RoleNone {
		hint = "this is the provider's, who works as root without a credential"
	}
	return &sigma.Error{Op: "kernel.roles." + op, Kind: sigma.KindPermission,
		Msg: "the credential's role " + f.role.String() + " does not allow " + what, Hint: hint}
}

// Walk clones.
func (f *roleFile) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	inner, ids, err := f.File.Walk(ctx, names)
	if inner != nil {
		inner = &roleFile{inner, f.name, f.role}
	}
	return inner, ids, err
}

// Open implements sigma.File.
func (f *roleFile) Open(ctx context.Context, flags sigma.OpenFlags) error {
	if flags.Writes() || !allows(f.role, f.name, reading) {
		return f.refuse("Open", reading)
	}
	return f.File.Open(ctx, flags)
}

// ReadAt implements sigma.File.
func (f *roleFile) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	if !allows(f.role, f.name, reading) {
		return 0, f.refuse("ReadAt", reading)
	}
	return f.File.ReadAt(ctx, p, offset)
}

// Call implements sigma.Caller.
func (f *roleFile) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	for _, file := range files {
		file.Close()
	}
	if !allows(f.role, f.name, method) {
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
