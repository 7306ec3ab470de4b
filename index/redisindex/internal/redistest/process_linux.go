package redistest

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel kill the process when the test binary ends without
// its cleanups, as it does at its timeout.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
