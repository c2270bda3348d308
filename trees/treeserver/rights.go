package treeserver

import (
	"fmt"
	"strings"

	"sigmaos.dev/sigma"
)

// Right is what a file's mode lets its owner do. All procs of a realm act as the owner of the
// realm's files (sigma.Stat.Owner), so of a mode these three bits decide (9P: intro(5); Linux:
// path_resolution(7)). The provider passes always, as root does: for it nobody asks. Links have no
// mode that anybody asks for.
type Right uint32

// The rights. Several are joined by |.
const (
	MayRead  Right = 0o400 // a file's bytes, a directory's listing; to watch either
	MayWrite Right = 0o200 // a file's bytes; of a directory to make, remove and rename entries
	MayPass  Right = 0o100 // through a directory, to what is in it
)

// Opening returns what opening with flags needs: what the handle can be used for afterwards.
func Opening(flags sigma.OpenFlags) Right {
	var r Right
	if flags&sigma.OpenWrite == 0 || flags&sigma.OpenReadWrite != 0 {
		r |= MayRead
	}
	if flags.Writes() {
		r |= MayWrite
	}
	return r
}

func (r Right) String() string {
	var s []string
	for _, x := range []struct {
		bit  Right
		name string
	}{{MayRead, "r"}, {MayWrite, "w"}, {MayPass, "x"}} {
		if r&x.bit != 0 {
			s = append(s, x.name)
		}
	}
	return strings.Join(s, "")
}

// Check is a KindPermission error, which tells what is missing, if a file's mode does not have the
// rights. name is the file's, "" of a root.
func (r Right) Check(op, name string, mode uint32) error {
	missing := r &^ Right(mode)
	if missing == 0 {
		return nil
	}
	if name == "" {
		name = "/"
	}
	return &sigma.Error{Op: op, Path: name, Kind: sigma.KindPermission,
		Msg:  fmt.Sprintf("the mode of %q is %04o, without %s for its owner", name, mode&0o777, missing),
		Hint: fmt.Sprintf("sigma chmod u+%s, if it is to be allowed", missing)}
}
