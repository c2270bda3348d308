package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigmaos.dev/sigma"
)

// FindPrograms looks for the system's programs beside this one.
func FindPrograms() (map[string]string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return nil, sigma.Wrap("sigma.findPrograms", "", err)
	}
	found := map[string]string{}
	for _, name := range append([]string{"launcher"}, BootPrograms...) {
		path := filepath.Join(filepath.Dir(self), name)
		if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			return nil, &sigma.Error{Op: "sigma.findPrograms", Kind: sigma.KindNotFound,
				Msg:  fmt.Sprintf("the program %s is not in %s", name, filepath.Dir(self)),
				Hint: "build all of sigmaOS with: make build; then use bin/sigma, or install with: make install"}
		}
		found[name] = path
	}
	return found, nil
}

// ProgramOf is the file of a program of a boot set.
func ProgramOf(name string) string {
	if strings.HasPrefix(name, "besched-") {
		return "besched"
	}
	return name
}

// BootPrograms are what the launcher is told of, sigmad first.
var BootPrograms = []string{"sigmad", "named", "besched", "s3d", "machined", "dbd", "lcsched"}
