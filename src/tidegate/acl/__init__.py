"""Access control lists: the rights of users, by the rules of Kafka's StandardAuthorizer. Standard library only.

`Authorizer` holds the ACLs and answers; `bindings` says what an ACL and a filter are; `codes` has Kafka's numbers.
"""

from tidegate.acl.authorizer import Authorizer, parse_super_users
from tidegate.acl.bindings import Acl, AclFilter, acl_problem, known_code

__all__ = ["Acl", "AclFilter", "Authorizer", "acl_problem", "known_code", "parse_super_users"]
