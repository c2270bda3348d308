package query

import (
	"net"
	"net/url"
	"slices"
	"strings"

	"sigmaos.dev/sigma"
)

// The engines.
const (
	EngineSQLite   = "sqlite"
	EnginePostgres = "postgresql"
	EngineMySQL    = "mysql"
)

// EngineOf says which engine a URL is for, by its scheme; "" if none is known.
func EngineOf(text string) string {
	switch scheme, _, _ := strings.Cut(text, ":"); scheme {
	case "postgres", "postgresql":
		return EnginePostgres
	case "mysql", "mariadb":
		return EngineMySQL
	}
	return ""
}

// Parameters of a URL that are understood. Others could make this server read files of its own, or
// connect elsewhere.
var parameters = map[string][]string{
	EnginePostgres: {"sslmode", "application_name", "search_path"},
	EngineMySQL:    {"tls"},
}

// badURL is an error about a URL; it never shows it.
func badURL(msg, hint string) error {
	return &sigma.Error{Op: "query.CheckURL", Kind: sigma.KindInvalid, Msg: msg, Hint: hint}
}

// CheckURL says what is wrong with a URL of a database, and where its server is: HOST:PORT. No
// error has a part of the URL in it but names of parameters.
func CheckURL(text string) (server string, err error) {
	u, perr := url.Parse(text)
	engine := EngineOf(text)
	const form = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE or mysql://USER:PASSWORD@HOST:PORT/DATABASE, with % for special characters in the password"
	switch {
	case perr != nil || text == "":
		return "", badURL("the URL cannot be understood", form)
	case engine == "":
		return "", badURL("the URL's scheme names no database that is known here", form)
	case u.Hostname() == "" || strings.Contains(u.Host, ","):
		return "", badURL("the URL does not name one server", form)
	case strings.Trim(u.Path, "/") == "" || u.Fragment != "":
		return "", badURL("the URL does not name a database", form)
	}
	for name := range u.Query() {
		if known := parameters[engine]; !slices.Contains(known, name) {
			return "", badURL("the URL has a parameter that is not known here: "+name, "known are: "+strings.Join(known,
				", "))
		}
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{EnginePostgres: "5432", EngineMySQL: "3306"}[engine]
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}
