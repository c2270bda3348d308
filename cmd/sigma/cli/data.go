package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sigma"
)

// DataDir gives the DATA of the machine that commands talk to: of several on this host, one of
// theirs.
func (a *App) DataDir() (string, error) {
	dir, err := a.DataRoot()
	if err != nil {
		return "", err
	}
	return datadir.HomeOf(dir), nil
}

// DataRoot gives DATA as an absolute path without symlinks and .. in it.
func (a *App) DataRoot() (string, error) {
	if a.Data == "" || strings.IndexByte(a.Data, 0) >= 0 {
		return "", datadir.Error(a.Data, sigma.KindInvalid, "is not a directory name",
			"write for example: --data "+datadir.Default)
	}
	dir, err := filepath.Abs(a.Data)
	if err != nil {
		return "", sigma.Wrap("sigma.dataRoot", a.Data, err)
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	if dir == "/" {
		return "", datadir.Error(dir, sigma.KindInvalid, "cannot be the data directory",
			"write for example: --data "+datadir.Default)
	}
	return dir, nil
}

// DefaultData is where DATA is if nobody says: below the home directory for an ordinary user, as
// the XDG base directory specification has it.
func (a *App) DefaultData() string {
	if os.Geteuid() == 0 {
		return datadir.Default
	}
	if dir := a.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sigmaos")
	}
	if home := a.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local/share/sigmaos")
	}
	return datadir.Default
}

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
	for _, name := range append([]string{"launcher"}, hostsetup.BootSet()...) {
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
