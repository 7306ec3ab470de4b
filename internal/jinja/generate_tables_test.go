package jinja

// The forms of expressions. A + before a name marks what Jinja2 3.1.2 or MarkupSafe
// 2.1.2 does otherwise.

// What a filter takes, what it gives, its name, its arguments.
const filterTable = `
int int abs -
float float abs -
num num abs -
rec maybe attr ‹'name'¦'nope'¦'__class__'¦name='n'›
iter xlist batch ‹<npos>«, ‹¦fill_with=›<value>»¦linecount=<npos>«, fill_with=<value>»›
str str capitalize -
value str capitalize -
str str center «‹¦width=›<w>»
value str center <w>
sized int count -
sized int length -
unsure any default «‹¦default_value=›<value>»«, boolean=<bool>»
unsure any d <value>«, <bool>»
value any d ‹<value>«, ‹¦boolean=›<bool>»¦default_value=<value>, boolean=<bool>›
maybe any default <value>«, <bool>»
dint lpair dictsort «, ‹¦case_sensitive=›<bool>»«, by='‹key¦value›'»«, reverse=<bool>»
dany lpair dictsort ‹true¦false›, 'key'«, <bool>»
value markup e -
value markup escape -
str markup escape -
markup markup e -
value markup forceescape -
markup markup forceescape -
num str filesizeformat «‹¦binary=›<bool>»
int str filesizeformat <bool>
lstr maybe first -
xany maybe first -
str maybe first -
lany maybe last -
str maybe last -
range int last -
value float float «‹¦default=›<float>»
str float float -
value int +int «‹¦default=›<int>»«, base=‹2¦8¦10¦16¦0¦36›»
str int int «‹¦default=›<int>»«, base=‹2¦8¦10¦16¦0¦36›»
float any +int -
irec groups groupby ‹¦attribute=›<attr>«, case_sensitive=<bool>»
irec groups groupby <optattr>, default=<word>«, case_sensitive=<bool>»
str str indent «‹¦width=›‹<w>¦<chars>›»«, first=<bool>»«, blank=<bool>»
str str indent <n>, <bool>, <bool>
dany xpair items -
unsure xpair items -
iter str join «‹¦d=›<chars>»
istr str join <sub>
irec str join <sub>, ‹¦attribute=›<attr>
iter lany list -
str lstr list -
dict lstr list -
unsure lany list -
str str lower -
value str lower -
istr maybe max «case_sensitive=<bool>»
iint maybe max -
irec any max attribute=<sortable>
istr maybe min «<bool>»
lnum maybe min -
irec any min attribute=<sortable>
lstr xany map <mapstr>
lstr xany map <mapstr>
lstr xany map <mapstr>
xstr xany map <mapstr>
lint xany map <mapnum>
lint xany map <mapnum>
lany xany map <mapany>
lany xany map <mapany>
irec xany map attribute=<optattr>«, default=<value>»
irec xstr map attribute=<strattr>
json str pprint -
value str pprint -
lstr xstr reject «<teststr>»
lint xint reject «<testint>»
lany xany reject <testany>
lstr xstr select «<teststr>»
iint xint select «<testint>»
lany xany select <testany>
irec xrec rejectattr ‹<attr>¦<attrtest>›
irec xrec selectattr ‹<attr>¦<attrtest>›
str str replace <sub>, <chars>«, ‹¦count=›<k>»
value str replace old=<sub>, new=<chars>
str str reverse -
list xany reverse -
range xint reverse -
xany lany reverse -
num num round «‹¦precision=›<k>»«, method='‹common¦ceil¦floor›'»
float float round <k>, '‹common¦ceil¦floor›'
int num round -
value markup safe -
iter xlist slice ‹<npos>«, ‹¦fill_with=›<value>»¦slices=<npos>«, fill_with=<value>»›
istr lstr sort «‹¦reverse=›<bool>»«, case_sensitive=<bool>»
lnum lnum sort «‹¦reverse=›<bool>»
irec lrec sort «reverse=<bool>, »«case_sensitive=<bool>, »attribute=<sortattr>
value str string -
any str string -
str str striptags -
markup str striptags -
iint num sum «start=<int>»
lnum num sum -
irec num sum ‹<numattr>«, ‹¦start=›<int>»¦attribute=<numattr>«, start=<int>»›
llint lint sum start=[]
str str title -
value str title -
value str tojson -
json str tojson <jsonargs>
dmix str tojson <jsonargs>
str str tojson <jsonargs>
rec str tojson indent=<n>
str str trim «‹¦chars=›<chars>»
value str trim -
str str truncate «‹¦length=›<w>»«, killwords=<bool>»«, end=‹<ch>¦''›»«, leeway=<n>»
str str truncate <w>, <bool>, <ch>, <n>
istr xstr unique «‹¦case_sensitive=›<bool>»
lnum xany unique -
irec xrec unique attribute=<attr>«, case_sensitive=<bool>»
str str upper -
value str upper -
str str urlencode -
value str urlencode -
dict str urlencode -
lpair str urlencode -
str str urlize «, <w>»«, nofollow=<bool>»«, target=<ch>»«, rel=<ch>»
links str +urlize «, <w>»«, nofollow=<bool>»«, target=<ch>»«, rel=<word>»«, extra_schemes=['ftp:', 'tel:']»
str int wordcount -
value int wordcount -
str str wordwrap «‹¦width=›<npos>»«, break_long_words=<bool>»«, wrapstring=<ch>»«, break_on_hyphens=<bool>»
str str wordwrap <w>0, <bool>
dattr str xmlattr «‹¦autospace=›<bool>»
`

// Whose, what it gives, the method, its arguments: "-" for none, "attribute" if it
// is none.
const methodTable = `
str str capitalize -
str str casefold -
str str center <w>«, <ch>»
str int count <sub>«, <k>«, <k>»»
str bool endswith ‹<sub>¦(<sub>, <sub>)›«, <k>«, <k>»»
str str expandtabs «‹¦tabsize=›<n>»
str int find <sub>«, <k>«, ‹<k>¦none›»»
str bool isalnum -
str bool isalpha -
str bool isascii -
str bool isdecimal -
str bool isdigit -
str bool isidentifier -
str bool islower -
str bool isnumeric -
str bool isprintable -
str bool isspace -
str bool istitle -
str bool isupper -
str str join <istr>
str str ljust <w>«, <ch>»
str str lower -
str str lstrip «‹<chars>¦none›»
str tuple partition <sep>
str str removeprefix <sub>
str str removesuffix <sub>
str str replace <sub>, <chars>«, <k>»
str int rfind <sub>«, <k>«, <k>»»
str str rjust <w>«, <ch>»
str tuple rpartition <sep>
str lstr rsplit «‹‹<sep>¦none›«, ‹¦maxsplit=›<k>»¦sep=<sep>«, maxsplit=<k>»›»
str str rstrip «<chars>»
str lstr split «‹‹<sep>¦none›«, ‹¦maxsplit=›<k>»¦sep=<sep>«, maxsplit=<k>»›»
str lstr split -
str lstr split <sep>
str lstr splitlines «‹¦keepends=›<bool>»
str bool startswith ‹<sub>¦(<sub>, <sub>)›«, <k>«, <k>»»
str str strip «<chars>»
str str swapcase -
str str title -
str str translate {97: 'X', 98: none, 233: 101, 10: <chars>}
str str upper -
str str zfill <w>
markup str +upper -
markup str +strip «<chars>»
markup str +replace <sub>, <chars>
markup lstr +split «<sep>»
markup str +join <istr>
markup str +center <w>«, <ch>»
markup tuple +partition <sep>
markup str +title -
markup str +removeprefix <sub>
markup lstr +splitlines -
markup str +casefold -
lstr int count <str>
lint int count <num>
list list copy -
lstr lstr copy -
lany lany copy -
tuple int count <scalar>
dint any get <key>«, <value>»
dany any get <key>«, <value>»
rec any get '‹name¦n¦opt¦nope›'«, <value>»
dict view items -
dict view keys -
dict view values -
dany dany copy -
int int bit_length -
int int bit_count -
int int conjugate -
int tuple as_integer_ratio -
int int real attribute
int int imag attribute
int int numerator attribute
int int denominator attribute
bool int bit_length -
bool int real attribute
float bool is_integer -
float tuple as_integer_ratio -
float float conjugate -
float float real attribute
float float imag attribute
range int start attribute
range int stop attribute
range int step attribute
range int count <num>
`

// What a test is of, its name, its arguments.
const testTable = `
num odd -
int even -
int odd -
num even -
int divisibleby <nz>
num divisibleby <nz>
unsure defined -
any defined -
unsure undefined -
any undefined -
str filter -
str test -
any none -
any boolean -
scalar boolean -
any false -
scalar false -
any true -
scalar true -
any integer -
scalar integer -
any float -
scalar float -
str lower -
value lower -
str upper -
value upper -
any string -
scalar string -
any mapping -
any number -
scalar number -
any sequence -
any iterable -
any callable -
any escaped -
any sameas ‹true¦false¦none›
bool sameas ‹true¦false¦no›
scalar in [<scalar>, <scalar>]
str in <str>
num in <lnum>
str in <dint>
any == <value>
any eq <value>
scalar equalto <scalar>
any != <value>
any ne <any>
num == <num>
str eq <str>
num ne <num>
num > <num>
num gt <num>
num greaterthan <num>
num >= <num>
num ge <num>
num < <num>
num lt <num>
num lessthan <num>
num <= <num>
num le <num>
str > <str>
str gt <str>
str greaterthan <str>
str >= <str>
str ge <str>
str < <str>
str lt <str>
str lessthan <str>
str <= <str>
str le <str>
`

// What it gives, its precedence, the constructs, the pattern.
const expressionTable = `
str 6 operator:+ <str:6> + <str:7>
str 7 operator:~ <any:8> ~ <any:8>
str 7 operator:~ <str:8> ~ <int:8> ~ <str:8>
str 8 operator:* <str:8> * <n>
str 8 operator:* <n> * <str:9>
str 12 operator:[] (<str:6> + 'x')[‹0¦-1›]
str 12 operator:slice <str!>[<slicing>]
str 1 expression:if <str:5> if <bool:2> else <str>
str 2 operator:or <str:2> or <str:3>
any 3 operator:and <bool:3> and <str:4>
str 8 operator:% <percent>
str 8 operator:% <percent>
str 12 str.format <fmtcall>
str 12 str.format <fmtcall>
str 12 str.format <fmtcall>
str 12 str.format <fmtcall>
str 12 str.format <fmtcall>
str 12 str.format_map <fmtmap>
str 12 filter:format <fmtfilter>
str 12 literal:adjacent <adjacent>
str 12 global:strftime_now strftime_now(<strf>)
str 12 global:strftime_now strftime_now(<strf>)
str 12 global:strftime_now strftime_now(format=<strf>)
str 12 global:raise_exception ('ok' if true else raise_exception(<str>))
str 12 - ('x' ~ <str:8>) or raise_exception('never')
str 12 - <message!>.role
any 12 - <message!>.content
any 12 - <message!>['content']
str 12 filter:attr (<str:11>|attr('‹upper¦lower¦title›'))()
any 11 filter:attr namespace(a=<value>)|attr('‹a¦b›')
str 11 str.isalpha "‹a¦1›".isalpha()|string
int 12 str.index (<str:6> + 'needle').index('needle'«, <n>»)
int 12 str.rindex (<str:6> + 'needle').rindex('needle')
int 12 list.index (<lint!> + [7]).index(7«, 0»)
int 12 list.index (<lstr!> + ['q']).index('q')
int 12 tuple.index (1, 'a', none).index(‹1¦'a'¦none¦1.0›)
int 12 tuple.count (1, 'a', true, 1.0).count(<scalar>)
int 12 range.index range(<npos>, 9).index(‹5¦6¦7›)
int 11 - <macro>|length
str 12 - <macro>
str 11 call:star dict(<aname>=1, **<dint>)|string
any 11 - messages|selectattr('role', 'equalto', 'user')|list
any 11 - messages|map(attribute='content')|list
int 6 operator:+ <int:6> + <int:7>
int 6 operator:- <int:6> - <int:7>
int 8 operator:* <int:8> * <int:9>
float 8 operator:/ <num:8> / <nz>
int 8 operator:// <int:8> // <nz>
int 8 operator:// <int:8> // (<int:6> or 3)
int 8 operator:% <int:8> % <nz>
int 8 operator:% <int:8> % (<int:6> or -7)
num 8 operator:// <float:8> // <nz>
num 8 operator:% <num:8> % ‹0.3¦-7¦2.5¦3›
num 6 operator:+ <num:6> + <num:7>
num 6 operator:- <num:6> - <num:7>
num 8 operator:* <num:8> * <num:9>
int 9 operator:** <small:9> ** <n>
num 9 operator:** <small:9> ** <k:10>
float 9 operator:** <float:10> ** <k:10>
float 9 operator:** <npos> ** ‹0.5¦-0.5¦2.5›
int 9 operator:** <small:9> ** ‹2¦3› ** <n>
int 10 operator:neg -<int!>
int 10 operator:pos +<int!>
float 10 operator:neg -<float!>
num 10 operator:neg ‹-¦- ¦+›<num!>
int 11 filter:abs -<int!>|abs
bool 5 operator:== <any:6> == <any:6>
bool 5 operator:== <scalar:6> == <scalar:6>
bool 5 operator:!= <any:6> != <any:6>
bool 5 operator:!= <str:6> != <str:6>
bool 5 operator:< <num:6> < <num:6>
bool 5 operator:<= <num:6> <= <num:6>
bool 5 operator:> <num:6> > <num:6>
bool 5 operator:>= <num:6> >= <num:6>
bool 5 operator:< <str:6> < <str:6>
bool 5 operator:> <lint:6> > <lint:6>
bool 5 operator:<= <llint:6> <= <llint:6>
bool 5 operator:>= (<int>, <str>) >= (<int>, <str>)
bool 5 operator:chained <num:6> ‹<¦<=› <num:6> ‹<¦<=¦==¦!=› <num:6>
bool 5 operator:chained <scalar:6> == <scalar:6> ‹==¦!=¦in› [<scalar>]
bool 5 operator:in <str:6> in <str:6>
bool 5 operator:in <scalar:6> in <list:6>
bool 5 operator:in <scalar:6> in <dict:6>
bool 5 operator:in <num:6> in <iint:6>
bool 5 operator:in <scalar:6> in <xany:6>
bool 5 operator:in <any:6> in <tuple:6>
bool 5 operator:notin <str:6> not in <str:6>
bool 5 operator:notin <scalar:6> not in <list:6>
bool 4 operator:not not <any:4>
bool 4 operator:not not <bool:4>
bool 3 operator:and <bool:3> and <bool:4>
bool 2 operator:or <bool:2> or <bool:3>
any 2 operator:or <any:2> or <any:3>
any 3 operator:and <any:3> and <any:4>
maybe 1 expression:if,expression:if_without_else <value:5> if <bool:2>
maybe 1 expression:if,expression:if_without_else <str:5> if <any:2>
any 1 expression:if <any:5> if <any:2> else <any>
int 1 expression:if <int:5> if <bool:2> else <int>
maybe 12 operator:[] <str!>[<k>]
maybe 12 operator:[] <list!>[<k>]
maybe 12 operator:[] <dict!>[<key>]
maybe 12 operator:[] <tuple!>[<k>]
maybe 12 operator:[] <range!>[<k>]
maybe 12 operator:[] <dmix!>[‹1¦true¦none¦'1'¦1.0›]
maybe 12 operator:. <dict!>.‹a¦b¦name¦nope¦content›
maybe 12 operator:. <rec!>.‹opt¦nope¦sub¦sub.k¦sub.l¦sub.l.0¦sub.nope¦__class__›
str 12 operator:. <rec!>.name
int 12 operator:. <rec!>.n
float 12 operator:. <rec!>['f']
lany 12 operator:. <rec!>.sub.l
dstr 1 expression:if <dstr:5> if <bool:2> else <dstr>
list 6 operator:+ <list:6> + <list:7>
lint 6 operator:+ <lint:6> + <lint:7>
lstr 6 operator:+ <lstr:6> + <lstr:7>
lint 8 operator:* <lint:8> * <n>
lstr 12 operator:slice <lstr!>[<slicing>]
lint 12 operator:slice <lint!>[<slicing>]
lany 12 operator:slice <lany!>[<slicing>]
tuple 12 operator:slice <tuple!>[<slicing>]
range 12 operator:slice <range!>[<slicing>]
messages 12 operator:slice messages[<slicing>]
tuple 6 operator:+ <tuple:6> + <tuple:7>
tuple 8 operator:* <tuple:8> * <n>
tuple 12 literal:tuple (<any>, <any>)
tuple 12 literal:tuple (<any>,)
lany 12 literal:list [<any>, <any>‹¦,›]
lany 12 literal:list [<value>«, <any>»«, <any>»]
lrec 12 literal:list [<rec>, <rec>]
lstr 12 literal:list [<str>, <str>]
lint 12 literal:list [<int>, <int>, <int>]
llint 12 literal:list [<lint>, <lint>]
dany 12 literal:dict {<key>: <any>, <str>: <value>‹¦,›}
dmix 12 literal:dict {<scalar>: <value>, <scalar>: <value>}
str 11 literal:dict {(1, <int>): <value>}|string
dint 12 literal:dict {<str>: <int>, <str>: <int>}
dstr 12 literal:dict {<str>: <str>}
dattr 12 literal:dict {'class': <value>, 'id': <any>, 'é': <str>}
dattr 12 literal:dict {}
dattr 12 +literal:dict {<chars>: <value>}
dint 12 global:dict dict(<dint>, a=<int>)
dint 12 global:dict dict(a=<int>, b=<int>)
dany 12 global:dict dict([['a', <value>], ('b', <value>)])
dany 12 global:dict dict(<lpair>)
dany 12 global:dict dict(<dict>.items())
dany 12 global:dict dict()
range 12 global:range range(<n>)
range 12 global:range range(<k>, <n>)
range 12 global:range range(<k>, <w>, ‹1¦2¦3¦-1›)
namespace 12 global:namespace namespace(<aname>=<value>)
namespace 12 global:namespace namespace(<dany>, z=<value>)
any 12 global:namespace namespace(v=<value>).‹v¦nope›
xint 12 global:range range(<w>)
any 12 global:cycler cycler(<value>, <value>).‹current¦next()›
str 12 global:joiner joiner(<str>)()
lany 11 +list.append,list.clear,list.extend,list.insert,list.pop,list.remove,list.reverse,list.sort [<list!>.append, <list!>.clear, <list!>.extend, <list!>.insert, <list!>.pop, <list!>.remove, <list!>.reverse, <list!>.sort]|map('string')|list
bool 4 list.append,list.extend,list.insert,list.remove,list.reverse,list.sort <list!>.‹append¦extend¦insert¦remove¦reverse¦sort› is defined
bool 4 dict.clear,dict.pop,dict.popitem,dict.setdefault,dict.update <dict!>.‹clear¦pop¦popitem¦setdefault¦update› is ‹defined¦undefined›
bool 4 - <str!>.‹__class__¦_x¦nope› is defined
bool 4 operator:. <unsure:11> is ‹none¦string¦sequence¦iterable¦mapping¦callable›
str 11 - <unsure:11>|‹upper¦string¦join¦e¦trim¦length¦list¦title›
bool 4 - not <unsure!>
bool 5 - <unsure!> == <unsure!>
xpair 12 dict.items <dany!>.items()
xstr 12 dict.keys <dint!>.keys()
xany 12 dict.values <dict!>.values()
view 12 dict.values <dict!>.values()
int 11 - <view:11>|length
markup 6 operator:+ <markup:6> + <str:7>
markup 6 operator:+ <str:6> + <markup:7>
markup 8 operator:* <markup:8> * <n>
markup 8 operator:% ('<I>%s</i>'|safe) % <str!>
markup 8 operator:% ('<I>%s</i>%r %d'|safe) % (<value>, <str>, <int>)
markup 12 +str.format ('<I>{}</i>{!r}'|safe).format(<str>, <str>)
markup 12 +operator:slice <markup!>[<slicing>]
str 7 operator:~ <markup:8> ~ <str:8>
markup 11 filter:join [<markup>, <str>]|join(<markup>)
small 12 - ‹0¦1¦2¦3¦7¦10¦12›
small 10 - -‹1¦2¦3¦5›
small 12 - (<numberlit> and 3)
num 12 - <numberlit!>
word 12 - <stringlit>
sortable 12 - ‹'name'¦'n'¦'f'¦'sub.k'›
lany 11 test:==,filter:select <lnum:11>|select('==', <num>)|list
lany 11 test:==,filter:selectattr <lrec:11>|selectattr('n', '==', <num>)|list
lany 11 test:==,filter:reject <lnum:11>|reject('==', <num>)|list
lany 11 test:==,filter:rejectattr <lrec:11>|rejectattr('n', '==', <num>)|list
lany 11 test:!=,filter:select <lnum:11>|select('!=', <num>)|list
lany 11 test:!=,filter:selectattr <lrec:11>|selectattr('n', '!=', <num>)|list
lany 11 test:!=,filter:reject <lnum:11>|reject('!=', <num>)|list
lany 11 test:!=,filter:rejectattr <lrec:11>|rejectattr('n', '!=', <num>)|list
lany 11 test:<,filter:select <lnum:11>|select('<', <num>)|list
lany 11 test:<,filter:selectattr <lrec:11>|selectattr('n', '<', <num>)|list
lany 11 test:<,filter:reject <lnum:11>|reject('<', <num>)|list
lany 11 test:<,filter:rejectattr <lrec:11>|rejectattr('n', '<', <num>)|list
lany 11 test:<=,filter:select <lnum:11>|select('<=', <num>)|list
lany 11 test:<=,filter:selectattr <lrec:11>|selectattr('n', '<=', <num>)|list
lany 11 test:<=,filter:reject <lnum:11>|reject('<=', <num>)|list
lany 11 test:<=,filter:rejectattr <lrec:11>|rejectattr('n', '<=', <num>)|list
lany 11 test:>,filter:select <lnum:11>|select('>', <num>)|list
lany 11 test:>,filter:selectattr <lrec:11>|selectattr('n', '>', <num>)|list
lany 11 test:>,filter:reject <lnum:11>|reject('>', <num>)|list
lany 11 test:>,filter:rejectattr <lrec:11>|rejectattr('n', '>', <num>)|list
lany 11 test:>=,filter:select <lnum:11>|select('>=', <num>)|list
lany 11 test:>=,filter:selectattr <lrec:11>|selectattr('n', '>=', <num>)|list
lany 11 test:>=,filter:reject <lnum:11>|reject('>=', <num>)|list
lany 11 test:>=,filter:rejectattr <lrec:11>|rejectattr('n', '>=', <num>)|list
groups 11 filter:groupby lr|groupby('n')
lany 11 filter:groupby lr|groupby('ok')|map(attribute='list')|list
lany 11 filter:groupby lr|groupby('name')|map(attribute='grouper')|list
lany 11 filter:groupby lr|groupby('n')|map('first')|list
lany 11 filter:map [[1, 'a'], [2, 'b']]|map(‹'first'¦'last'¦attribute=0¦attribute='1'¦attribute=1›)|list
lany 11 filter:slice <iter:11>|slice(<npos>)|‹list¦map('list')|list›
lany 11 filter:batch <iter:11>|batch(<npos>)|‹list¦map('length')|list¦first¦last›
list 11 filter:sum <lpair:11>|sum(start=())
int 11 filter:sum <dint!>.values()|sum
xpair 11 filter:dictsort <dint:11>|dictsort
`

// The like of the loop variable, where there is one.
const loopTable = `
int 12 loop.index loop.index
int 12 loop.index0 loop.index0
int 12 loop.revindex loop.revindex
int 12 loop.revindex0 loop.revindex0
bool 12 loop.first loop.first
bool 12 loop.last loop.last
bool 4 loop.last not loop.last
int 12 loop.length loop.length
int 12 loop.depth loop.depth
int 12 loop.depth0 loop.depth0
maybe 12 loop.previtem loop.previtem
maybe 12 loop.nextitem loop.nextitem
bool 4 loop.previtem loop.previtem is defined
bool 4 loop.nextitem loop.nextitem is undefined
any 12 loop.cycle loop.cycle(<value>, <value>«, <value>»)
bool 12 loop.changed loop.changed(<value>«, <value>»)
bool 12 loop.changed loop.changed(loop.index // 2)
int 11 - loop|length
str 11 - loop|string
any 12 - loop['index']
`

// Statements that are seldom written, or are errors.
const oddTable = `
{% if ‹no¦yes› %}{{ s|nosuchfilter }}{% endif %}
{{ 'a' if ‹yes¦no¦true› else s|nosuchfilter }}
{{ ‹no and s is nosuchtest¦s is nosuchtest¦yes or s|nosuchfilter¦'nosuch' is filter› }}
{{ <value>, <value> }}
{{ <any>‹¦,› }}
{{ }}
{{ ‹loop¦caller¦varargs¦kwargs¦loop.index¦caller()¦varargs|length› }}
{% set ‹loop¦caller¦varargs¦true¦none¦range¦s.x¦ns.x¦x.y¦a, a¦(a)¦(a, b)¦a,› = <value> %}{{ a }}
{% for ‹loop¦a, a¦(a)¦a,¦x.y¦_, b› in <list> %}{{ a }}{% endfor %}
{% macro odd(a, b=a, c=‹b¦c¦nope¦s¦loop¦odd›) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ odd(‹<value>¦1, 2¦1, 2, 3, 4¦¦b=1¦a=1, a=2¦1, a=2¦z=1¦*[1, 2]¦**{'a': 1, 'c': 2}¦*lx¦**dx›) }}
{% macro odd(caller, a=‹1¦caller›) %}{{ a }}{% endmacro %}{{ odd(1) }}
{% macro odd(caller=none) %}{{ caller }}{% endmacro %}{{ odd() }}{% call odd() %}x{% endcall %}
{% call odd2(<value>) %}x{% endcall %}
{% macro odd(a, a) %}{% endmacro %}
{% set x %}{{ x }}{% endset %}{{ x }}
{% set x = x %}{{ x }}
{% set f1 = range %}{{ f1(<n>)|list }}
{% set f1 = s.‹upper¦split¦nope› %}{{ f1() }}
{% if <any> %}{% set zz = <value> %}{% ‹else¦elif <any>› %}{% set zz = <value> %}{% endif %}{{ zz }}
{% for q in <list:12> %}{% set zz = q %}{% if loop.first %}{% continue %}{% endif %}{{ zz }}{% else %}{{ zz }}{% endfor %}{{ zz }}{{ q }}
{% for q in <list:12> %}{% if q is in(<list>) %}{% break %}{% endif %}{{ loop.index }}{{ loop.last }}{{ loop.nextitem }}{% endfor %}
{% for q in <iter:12> %}{{ loop.‹length¦last¦nextitem¦revindex¦previtem› }}{{ q }}{{ loop.‹length¦last¦nextitem¦revindex¦previtem› }}{% endfor %}
{% set it = <iter> %}{{ it|‹first¦list¦join¦length¦last¦string|length› }}{{ it|‹list¦first¦sum(start='')› }}
{% set it = <xany> %}{% for q in it %}{{ q }}{% if loop.first %}{{ it|list }}{% endif %}{% endfor %}{{ it|list }}
{% for a, b in <any:12> %}{{ a }}{% endfor %}
{% set a, b = <any> %}{{ a }}
{% set a, b, c = <str> %}{{ a }}
{% for q in [[1, [2]], [3]] recursive %}{{ loop.depth }}{% if q is iterable %}({{ loop(q) }}){% else %}{{ q }}{% endif %}{% endfor %}
{% with a = <value>, b = a %}{{ b }}{{ a }}{% endwith %}{{ a }}
{% filter ‹upper¦nosuch¦replace('a', 'b')|title¦default(s)¦tojson¦first› %}{% set inner = <value> %}{{ inner }}<B>{% endfilter %}{{ inner }}
{{ [<any>, <any>]|‹sort¦min¦max¦sum¦unique|list¦join¦first¦list¦tojson¦groupby(0)¦map('upper')|list›|string }}
{{ <any:11>|attr(<stringlit>)|string|length }}
{{ <any!>[<any>]|string|length }}
{{ <any:11>|‹int¦float¦length¦list¦first¦last¦abs¦round¦sum¦sort¦reverse|list¦items|list¦dictsort¦batch(2)|list¦wordcount¦urlencode¦xmlattr¦filesizeformat¦tojson¦pprint¦striptags¦title¦trim¦truncate¦indent¦wordwrap(5)¦center(9)¦unique|list¦join¦max¦min¦string¦e¦select|list¦map('int')|list¦random¦urlize¦groupby('a')¦format(1)¦replace(1, 2)› }}
{{ <any:11> is ‹odd¦even¦divisibleby(2)¦lower¦upper¦in(s)¦in(lx)¦sequence¦iterable¦callable¦escaped¦mapping¦filter¦test¦sameas(none)¦lt(1)¦gt('a')¦eq(none)› }}
{{ <any:6> ‹+¦-¦*¦/¦//¦%¦**¦~¦<¦>¦<=¦>=¦==¦!=¦in¦not in¦and¦or› <any:10> }}
{{ ‹-¦+¦not ›<any!> }}
{{ <any!>(<value>) }}
{{ <any!>.‹upper¦items¦get¦keys¦index¦count¦split¦format¦copy¦real¦append¦x¦__class__¦_x¦__len__¦name› is defined }}
{{ <any!>.‹upper¦lower¦keys¦copy¦split¦bit_length¦append¦x›() }}
{{ <numtext:11>|‹int¦float¦int(7)¦int(base=16)¦int(0, 2)¦int(0, 36)¦float(1.5)¦int(default='x')¦int(base=0)› }}
{{ ‹0_1¦1__0¦1_¦.5¦1.¦1.e5¦1e¦0x¦0b2¦00¦01¦007¦1.0.0¦1..real¦1.real¦0xfF¦1e+5¦1_0e1_0¦0_0¦1 .real¦0B11¦1E400› }}
{{ '‹\ud800¦\N{BULLET}¦\x4¦\u12¦\\¦\400¦\777¦\8¦\x00¦\U00110000¦\uFFFF¦\'¦\r\n›' }}
{{ '{‹¦0¦a¦0.a¦0[a]¦0[0]¦-1¦ ¦!r¦!x¦0!s¦:¦:{}¦:{0}¦{¦}¦[¦0[¦0.¦0..a¦a b¦0]›}'.format(<value>, <n>) }}
{{ '{:<garbage>}'.format(<scalar>) }}
{{ '%<garbage>' % <scalar:9> }}
{{ strftime_now('%<garbage>') }}{{ strftime_now('%‹s¦-s¦_f¦^Z¦0z›') }}
{{ 1.5.hex() }}
{{ <any:11>|tojson(indent=<any>) }}
{{ <json:11>|tojson(separators=<any>) }}
{{ <dmix:11>|tojson(sort_keys=true) }}
{{ 1e999|‹string¦tojson¦int¦round¦abs› }}
{{ (1e308 * 10)|‹string¦tojson¦int¦round¦abs¦float¦filesizeformat¦pprint› }}
{{ (0.0 * (1e308 * 10))|‹string¦tojson¦int¦abs› }}
{{ range(<any>)|list }}
{{ range(<int>, <int>, <any>)|first }}
{{ dict(<any>) }}
{{ namespace(<any>) }}
{{ cycler(<any>).next() }}{{ cycler().next() }}
{{ joiner(<any>)() }}
{{ lipsum is defined }}
{{ ns is defined }}{{ self is defined }}
{{ raise_exception(<any>) }}
{{ s.format(<any>) }}
{{ words.split(<any>) }}{{ words.replace(<any>, <any>) }}
{{ words.join(<any>) }}{{ <str!>.startswith(<any>) }}
{{ <str!>.‹center¦ljust¦rjust¦zfill¦expandtabs›(<any>) }}
{{ <any!>[<any>:<any>:<any>] }}
{{ <str!>[:: <any>] }}
{{ 'a' 'b' ~ 'c' "d" }}
{{ not not <any:4> }}{{ - - 1 }}{{ -+-1 }}{{ - 1 ** 2 }}{{ 2 ** -1 }}{{ 2 ** 3 ** 2 }}
{{ 1 if 0 }}{{ 1 if 0 else 2 if 0 else 3 }}{{ (1 if 0) is defined }}
{{ 1 < 2 < 3 < <any:6> }}{{ 1 in [1] in [[1], true] }}{{ 1 == 1.0 == true }}
{{ {'a': {'b': {'c': <any>}}}.a.b['c'] }}
{{ {'items': 1}.items }}{{ {'keys': 1}['keys'] }}{{ {}.nope.nope2 }}
{{ {<any>: 1} }}
{{ [] is sameas [] }}{{ s is sameas s }}{{ 1 is sameas 1 }}{{ none is sameas none }}
{{ (1, 2) < (1, 3) }}{{ [1] == (1,) }}{{ [1] < [<any>] }}
{% raw %}{{ a }}{% endraw -%} x {%- raw -%} {% b %} {%- endraw -%} y
{#- a -#}{#+ b #} {# c
#}
{% generation %}{% set gg = 1 %}{{ gg }}{% endgeneration %}{{ gg }}
{% block b %}{% endblock %}
{% include 'x' %}
{% nosuchtag %}
{% endfor %}
{% break %}
{{ s
}}{{- '
' -}}
`
