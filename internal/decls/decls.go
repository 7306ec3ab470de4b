// Package decls finds what Go source declares by name, for the tools of this
// repository.
package decls

import "go/ast"

// Names returns what a declaration declares: functions, methods as Type.Method,
// types, variables and constants.
func Names(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return []string{d.Name.Name}
		}
		return []string{receiver(d.Recv.List[0].Type) + "." + d.Name.Name}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range s.Names {
					names = append(names, name.Name)
				}
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			}
		}
	}
	return names
}

// Members returns the fields of structs, and the methods of interfaces, that a
// declaration declares, as Type.Member. An embedded type, or one that Type is another name for, is
// there as Type.=Other too.
func Members(d ast.Decl) (names []string) {
	g, ok := d.(*ast.GenDecl)
	if !ok {
		return nil
	}
	for _, spec := range g.Specs {
		t, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		var fields *ast.FieldList
		switch u := t.Type.(type) {
		case *ast.StructType:
			fields = u.Fields
		case *ast.InterfaceType:
			fields = u.Methods
		case *ast.Ident, *ast.SelectorExpr:
			names = append(names, t.Name.Name+".="+receiver(u))
			continue
		default:
			continue
		}
		for _, f := range fields.List {
			for _, name := range f.Names {
				names = append(names, t.Name.Name+"."+name.Name)
			}
			if other := receiver(f.Type); len(f.Names) == 0 && other != "" {
				names = append(names, t.Name.Name+"."+other, t.Name.Name+".="+other)
			}
		}
	}
	return names
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.SelectorExpr:
		return t.Sel.Name
	case *ast.Ident:
		return t.Name
	}
	return ""
}
